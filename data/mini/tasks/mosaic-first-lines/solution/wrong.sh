#!/bin/bash
cd /app
head -n 4 mosaic.txt > planet.txt
