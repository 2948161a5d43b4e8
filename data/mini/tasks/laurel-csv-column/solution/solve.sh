#!/bin/bash
cd /app
head -n 1 laurel.csv
cut -d, -f2 laurel.csv > eagle.txt
