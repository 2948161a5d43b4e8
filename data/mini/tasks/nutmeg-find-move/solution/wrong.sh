#!/bin/bash
cd /app
find . -name nutmeg.txt
cp ./piano/nutmeg.txt magnet
