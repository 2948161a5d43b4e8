#!/bin/bash
cd /app
tail -n 1 otter.log
chmod 644 maple.conf
echo maple.conf > linen.txt
