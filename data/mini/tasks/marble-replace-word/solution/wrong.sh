#!/bin/bash
cd /app
sed -i 's/velvet/jacket/' marble.txt
