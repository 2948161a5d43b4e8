#!/bin/bash
cd /app
ls cliff
kill $(cat cliff/fossil.pid)
rm cliff/fossil.pid
