#!/bin/bash
cd /app
find . -name nutmeg.txt
mv ./piano/nutmeg.txt magnet
