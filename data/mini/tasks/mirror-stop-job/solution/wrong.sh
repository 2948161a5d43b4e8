#!/bin/bash
cd /app
ls mirror
kill $(cat mirror/button.pid)
