#!/bin/bash
cd /app
sed -i 's/pencil/badge/g' hammer.txt
