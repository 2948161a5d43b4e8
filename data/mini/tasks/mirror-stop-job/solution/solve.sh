#!/bin/bash
cd /app
ls mirror
kill $(cat mirror/button.pid)
rm mirror/button.pid
