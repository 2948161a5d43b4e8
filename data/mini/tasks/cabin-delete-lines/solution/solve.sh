#!/bin/bash
cd /app
sed -i '/amber/d' cabin.txt
