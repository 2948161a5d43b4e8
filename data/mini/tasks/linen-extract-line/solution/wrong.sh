#!/bin/bash
cd /app
grep 4 linen.txt > pillar.txt
