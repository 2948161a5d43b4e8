#!/bin/bash
cd /app
grep -c barrel pencil.log > pocket.txt
