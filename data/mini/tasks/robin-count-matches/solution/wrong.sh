#!/bin/bash
cd /app
grep button robin.log > eagle.txt
