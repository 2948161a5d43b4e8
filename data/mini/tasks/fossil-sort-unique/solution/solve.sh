#!/bin/bash
cd /app
sort -u fossil.txt > summit.txt
