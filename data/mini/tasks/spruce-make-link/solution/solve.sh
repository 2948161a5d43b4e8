#!/bin/bash
cd /app
ln -s linen.txt spruce.txt
