#!/bin/bash
cd /app
mv granite/bottle.txt granite/jade.txt
