#!/bin/bash
cd /app
echo cherry > prism.txt
