#!/bin/bash
cd /app
sed -n 4p linen.txt > pillar.txt
