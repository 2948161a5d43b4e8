#!/bin/bash
cd /app
ln linen.txt spruce.txt
