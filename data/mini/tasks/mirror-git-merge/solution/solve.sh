#!/bin/bash
cd /app
git log --all --format=%D -- mirror.txt
git merge -q melon
git branch -d melon
