#!/bin/bash
cd /app
cat planet.txt
echo hammer > crystal.txt
