#!/bin/bash
cd /app
chmod 444 ocean.txt
