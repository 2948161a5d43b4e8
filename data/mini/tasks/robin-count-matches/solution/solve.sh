#!/bin/bash
cd /app
grep -c button robin.log > eagle.txt
