#!/bin/bash
cd /app
echo granite > barrel.txt
