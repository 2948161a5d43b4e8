#!/bin/bash
cd /app
echo kettle > cherry.txt
