#!/bin/bash
cd /app
md5sum --quiet -c linen.md5
rm valley.txt
