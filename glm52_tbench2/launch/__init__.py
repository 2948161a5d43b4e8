"""From a composed run to its processes: checks, placement, supervision, progress."""
