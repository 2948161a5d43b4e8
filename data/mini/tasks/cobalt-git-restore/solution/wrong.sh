#!/bin/bash
cd /app
git status --short
touch cobalt/walnut.txt
