#!/bin/bash
cd /app
chmod +x satin.sh
./satin.sh > hammer.txt
