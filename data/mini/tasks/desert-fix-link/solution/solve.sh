#!/bin/bash
cd /app
readlink desert.txt
find . -name bridge.txt
ln -sf ./ocean/bridge.txt desert.txt
