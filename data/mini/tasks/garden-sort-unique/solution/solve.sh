#!/bin/bash
cd /app
sort -u garden.txt > cliff.txt
