#!/bin/bash
cd /app
tar -czf jacket.tar.gz lotus
