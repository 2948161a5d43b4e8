#!/bin/bash
cd /app
md5sum --quiet -c granite.md5
rm nickel.txt
