#!/bin/bash
cd /app
sed -i 's/hammer//' bridge.txt
