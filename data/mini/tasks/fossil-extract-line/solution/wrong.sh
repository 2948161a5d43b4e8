#!/bin/bash
cd /app
grep 4 fossil.txt > jade.txt
