#!/bin/bash
cd /app
./crane.sh > canyon.txt
