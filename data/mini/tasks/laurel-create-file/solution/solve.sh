#!/bin/bash
cd /app
echo nutmeg > laurel.txt
