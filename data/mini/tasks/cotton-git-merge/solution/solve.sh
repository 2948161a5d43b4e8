#!/bin/bash
cd /app
git log --all --format=%D -- cotton.txt
git merge -q meadow
git branch -d meadow
