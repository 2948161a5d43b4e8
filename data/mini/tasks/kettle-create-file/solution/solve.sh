#!/bin/bash
cd /app
echo cherry > kettle.txt
