#!/bin/bash
cd /app
tar -xzvf orbit.tar.gz
mv helmet.txt summit.txt
