#!/bin/bash
cd /app
cat basil.conf
ls butter
mv butter/eagle.txt butter/grape.txt
