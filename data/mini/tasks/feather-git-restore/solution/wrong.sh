#!/bin/bash
cd /app
ls feather
git checkout feather/olive.txt
