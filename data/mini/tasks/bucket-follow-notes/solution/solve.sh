#!/bin/bash
cd /app
cat bucket.txt
cat olive.txt
cat velvet.txt
echo jungle > honey.txt
