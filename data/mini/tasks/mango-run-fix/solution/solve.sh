#!/bin/bash
cd /app
bash mango.sh
touch crystal
bash mango.sh
