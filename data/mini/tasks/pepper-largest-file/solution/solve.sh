#!/bin/bash
cd /app
ls -S pepper
rm pepper/puzzle.txt
