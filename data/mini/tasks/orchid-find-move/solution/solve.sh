#!/bin/bash
cd /app
find . -name orchid.txt
mv ./honey/orchid.txt planet
