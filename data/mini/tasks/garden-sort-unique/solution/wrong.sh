#!/bin/bash
cd /app
sort garden.txt > cliff.txt
