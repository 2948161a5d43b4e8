#!/bin/bash
cd /app
tail -n 4 mosaic.txt > planet.txt
