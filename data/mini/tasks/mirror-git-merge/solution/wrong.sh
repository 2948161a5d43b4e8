#!/bin/bash
cd /app
git branch
git merge -q beacon
git branch -d beacon
