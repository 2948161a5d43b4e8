#!/bin/bash
cd /app
chmod +x satin.sh
cat satin.sh > hammer.txt
