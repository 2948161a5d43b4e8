#!/bin/bash
cd /app
git status --short
git checkout hammer/lotus.txt
