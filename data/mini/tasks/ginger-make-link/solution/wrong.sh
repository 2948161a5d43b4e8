#!/bin/bash
cd /app
ln timber.txt ginger.txt
