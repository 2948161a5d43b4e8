#!/bin/bash
cd /app
cat mango.txt
cat timber.txt
cat grape.txt
echo magnet > summit.txt
