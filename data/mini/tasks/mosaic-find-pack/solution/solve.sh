#!/bin/bash
cd /app
find . -name mosaic.txt
tar -czf cliff.tar.gz ribbon
rm -r ribbon
