#!/bin/bash
cd /app
cat mango.txt
echo timber > summit.txt
