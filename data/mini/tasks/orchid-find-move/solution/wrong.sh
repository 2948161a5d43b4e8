#!/bin/bash
cd /app
find . -name orchid.txt
cp ./honey/orchid.txt planet
