#!/bin/bash
cd /app
cat turtle.json
echo 59 > turtle.json
