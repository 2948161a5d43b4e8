#!/bin/bash
cd /app
diff -rq lemon mirror
cp lemon/marble.txt mirror/marble.txt
