#!/bin/bash
cd /app
tar -xzvf walnut.tar.gz
mv walnut.txt cobalt.txt
