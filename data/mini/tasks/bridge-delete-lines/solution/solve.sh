#!/bin/bash
cd /app
sed -i '/hammer/d' bridge.txt
