#!/bin/bash
cd /app
sort -u rabbit.txt > basil.txt
