#!/bin/bash
cd /app
cat basil.json
sed -i 's/81/46/' basil.json
