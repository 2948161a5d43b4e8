#!/bin/bash
cd /app
find . -name honey.txt
mv ./island/honey.txt pocket
