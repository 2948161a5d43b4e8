#!/bin/bash
cd /app
bash satin.sh
touch nickel
bash satin.sh
