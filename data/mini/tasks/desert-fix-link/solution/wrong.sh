#!/bin/bash
cd /app
find . -name desert.txt
ln -sf feather/walnut.txt desert.txt
