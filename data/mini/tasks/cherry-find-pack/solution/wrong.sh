#!/bin/bash
cd /app
find . -name cherry.txt
tar -czf lantern.tar.gz flint
