#!/bin/bash
cd /app
ls
rm dragon.txt
