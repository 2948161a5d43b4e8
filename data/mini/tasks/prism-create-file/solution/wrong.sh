#!/bin/bash
cd /app
echo prism > cherry.txt
