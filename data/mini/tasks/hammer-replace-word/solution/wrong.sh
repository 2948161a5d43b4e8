#!/bin/bash
cd /app
sed -i 's/pencil/badge/' hammer.txt
