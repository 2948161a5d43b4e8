#!/bin/bash
cd /app
tar -tzf pocket.tar.gz
mv apple.txt barrel.txt
