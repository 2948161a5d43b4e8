#!/bin/bash
cd /app
grep -rl bottle granite
mv granite/kettle.txt granite/jade.txt
