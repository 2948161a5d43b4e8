#!/bin/bash
cd /app
sed -n 4p fossil.txt > jade.txt
