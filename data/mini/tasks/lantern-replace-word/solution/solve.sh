#!/bin/bash
cd /app
sed -i 's/maple/tulip/g' lantern.txt
