#!/bin/bash
cd /app
git status --short
git checkout feather/butter.txt
