#!/bin/bash
cd /app
echo laurel > nutmeg.txt
