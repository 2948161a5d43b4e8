#!/bin/bash
cd /app
chmod 644 cotton.txt
