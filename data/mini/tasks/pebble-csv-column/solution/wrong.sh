#!/bin/bash
cd /app
cut -d, -f2 pebble.csv > cliff.txt
