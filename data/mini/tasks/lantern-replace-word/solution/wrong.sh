#!/bin/bash
cd /app
sed -i 's/maple/tulip/' lantern.txt
