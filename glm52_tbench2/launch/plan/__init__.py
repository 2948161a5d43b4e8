"""What a layout needs before anybody starts it: memory, disk, time, and what does not fit."""
