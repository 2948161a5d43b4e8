#!/bin/bash
cd /app
head -n 1 pebble.csv
cut -d, -f1 pebble.csv > cliff.txt
