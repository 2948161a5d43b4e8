#!/bin/bash
cd /app
readlink walnut.txt
find . -name desert.txt
ln -sf ./helmet/desert.txt walnut.txt
