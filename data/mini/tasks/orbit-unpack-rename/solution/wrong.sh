#!/bin/bash
cd /app
mv orbit.tar.gz summit.txt
