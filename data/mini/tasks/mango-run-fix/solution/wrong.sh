#!/bin/bash
cd /app
bash mango.sh
mkdir robin
bash mango.sh
