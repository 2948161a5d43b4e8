#!/bin/bash
cd /app
grep -c turtle planet.log > bridge.txt
