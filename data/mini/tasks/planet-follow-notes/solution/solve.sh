#!/bin/bash
cd /app
cat planet.txt
cat hammer.txt
cat garden.txt
echo ladder > crystal.txt
