#!/bin/bash
cd /app
cat otter.txt
cat carbon.txt
echo melon > ginger.txt
