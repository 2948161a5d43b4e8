#!/bin/bash
cd /app
cat maple.json
sed -i 's/58/78/' maple.json
