#!/bin/bash
cd /app
grep -rl rabbit mirror
mv mirror/jasmine.txt mirror/turtle.txt
