#!/bin/bash
cd /app
cat otter.txt
cat carbon.txt
cat melon.txt
echo castle > ginger.txt
