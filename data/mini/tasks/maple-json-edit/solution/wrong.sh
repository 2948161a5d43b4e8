#!/bin/bash
cd /app
cat maple.json
sed -i 's/95/78/' maple.json
