#!/bin/bash
cd /app
sed -i 's/velvet/jacket/g' marble.txt
