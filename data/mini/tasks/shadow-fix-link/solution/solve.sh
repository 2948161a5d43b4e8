#!/bin/bash
cd /app
readlink shadow.txt
find . -name oasis.txt
ln -sf ./tiger/oasis.txt shadow.txt
