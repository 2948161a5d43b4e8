#!/bin/bash
cd /app
git status --short
git checkout cobalt/walnut.txt
