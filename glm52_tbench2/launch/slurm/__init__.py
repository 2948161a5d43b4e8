"""Runs as Slurm jobs: checked, submitted, run on each node, followed and stopped."""
