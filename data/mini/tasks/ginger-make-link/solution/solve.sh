#!/bin/bash
cd /app
ln -s timber.txt ginger.txt
