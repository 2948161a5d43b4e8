#!/bin/bash
cd /app
tail -n 1 cherry.csv
echo apple > jungle.txt
