#!/bin/bash
cd /app
bash satin.sh
touch laurel.txt
