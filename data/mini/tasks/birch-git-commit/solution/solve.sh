#!/bin/bash
cd /app
git add birch.txt
git commit -qm magnet
