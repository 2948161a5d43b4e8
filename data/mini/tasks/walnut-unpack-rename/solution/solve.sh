#!/bin/bash
cd /app
tar -xzvf walnut.tar.gz
mv lemon.txt cobalt.txt
