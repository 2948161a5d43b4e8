#!/bin/bash
cd /app
cat turtle.json
sed -i 's/21/59/' turtle.json
