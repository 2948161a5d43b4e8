#!/bin/bash
cd /app
tar -xzvf pocket.tar.gz
mv apple.txt barrel.txt
