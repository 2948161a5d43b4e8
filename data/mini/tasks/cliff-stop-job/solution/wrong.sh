#!/bin/bash
cd /app
kill cliff
rm cliff/cliff.pid
