#!/bin/bash
cd /app
cat bucket.txt
echo olive > honey.txt
