#!/bin/bash
cd /app
git add prism.txt
