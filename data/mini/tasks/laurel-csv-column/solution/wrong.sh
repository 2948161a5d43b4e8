#!/bin/bash
cd /app
grep team laurel.csv > eagle.txt
