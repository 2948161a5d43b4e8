#!/bin/bash
cd /app
md5sum --quiet -c carbon.md5
rm jasmine.txt
