#!/bin/bash
cd /app
cat basil.json
sed -i 's/26/46/' basil.json
