#!/bin/bash
cd /app
diff -rq mirror prism
cp mirror/beacon.txt prism/beacon.txt
