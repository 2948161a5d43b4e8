#!/bin/bash
cd /app
tail -n 1 marble.log
chmod 644 canyon.conf
echo canyon.conf > pepper.txt
