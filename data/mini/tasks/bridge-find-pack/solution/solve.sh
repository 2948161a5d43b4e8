#!/bin/bash
cd /app
find . -name bridge.txt
tar -czf topaz.tar.gz puzzle
rm -r puzzle
