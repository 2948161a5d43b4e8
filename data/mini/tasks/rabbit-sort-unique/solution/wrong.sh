#!/bin/bash
cd /app
sort rabbit.txt > basil.txt
