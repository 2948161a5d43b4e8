#!/bin/bash
cd /app
grep -rl cedar saddle
mv saddle/desert.txt saddle/otter.txt
