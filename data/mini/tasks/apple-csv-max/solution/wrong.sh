#!/bin/bash
cd /app
sort -t, -k2 -n apple.csv | tail -n 1 > lagoon.txt
