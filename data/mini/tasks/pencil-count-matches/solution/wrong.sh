#!/bin/bash
cd /app
wc -l < pencil.log > pocket.txt
