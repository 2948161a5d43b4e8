#!/bin/bash
cd /app
git add prism.txt
git commit -qm beacon
