#!/bin/bash
cd /app
sort -t, -k2 -n cherry.csv | tail -n 1
echo walnut > jungle.txt
