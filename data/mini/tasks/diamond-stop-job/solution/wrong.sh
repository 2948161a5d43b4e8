#!/bin/bash
cd /app
ls diamond
kill $(cat diamond/rocket.pid)
