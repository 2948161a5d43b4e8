#!/bin/bash
cd /app
chmod +x crane.sh
./crane.sh > canyon.txt
