#!/bin/bash
cd /app
sed -i 's/^THEME=.*/THEME=satin/' lantern.env
