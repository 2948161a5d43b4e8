#!/bin/bash
cd /app
sort -t, -k2 -n timber.csv | tail -n 1
echo bronze > tiger.txt
