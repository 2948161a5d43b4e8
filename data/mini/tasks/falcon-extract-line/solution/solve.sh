#!/bin/bash
cd /app
sed -n 5p falcon.txt > ginger.txt
