#!/bin/bash
cd /app
tail -n 1 timber.csv
echo banana > tiger.txt
