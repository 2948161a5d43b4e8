#!/bin/bash
cd /app
sed -i 's/^MODE=.*/MODE=orchid/' carbon.env
