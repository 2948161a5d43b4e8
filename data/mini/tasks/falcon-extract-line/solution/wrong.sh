#!/bin/bash
cd /app
grep 5 falcon.txt > ginger.txt
