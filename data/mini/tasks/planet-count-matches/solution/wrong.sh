#!/bin/bash
cd /app
wc -l < planet.log > bridge.txt
