#!/bin/bash
cd /app
ls -l cotton.txt
