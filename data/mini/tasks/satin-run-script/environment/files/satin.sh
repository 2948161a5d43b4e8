#!/bin/sh
echo silver
