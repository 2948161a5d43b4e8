#!/bin/bash
cd /app
sed -i 's/amber//' cabin.txt
