#!/bin/bash
cd /app
tail -n 3 laurel.txt > ginger.txt
