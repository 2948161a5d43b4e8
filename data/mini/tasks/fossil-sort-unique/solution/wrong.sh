#!/bin/bash
cd /app
sort fossil.txt > summit.txt
