#!/bin/bash

# Parameters
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --job-name=reference
#SBATCH --mem=0M
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=ROOT/runs/reference/slurm/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@600
#SBATCH --time=1440
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output ROOT/runs/reference/slurm/%j_%t_log.out --kill-on-bad-exit=1 PYTHON -u -m submitit.core._submit ROOT/runs/reference/slurm

# Roles of each node
#   0  trainer-0 trainer-1 trainer-2 trainer-3
#   1  trainer-4 trainer-5 trainer-6 trainer-7
#   2  trainer-8 trainer-9 trainer-10 trainer-11
#   3  trainer-12 trainer-13 trainer-14 trainer-15
#   4  trainer-16 trainer-17 trainer-18 trainer-19
#   5  trainer-20 trainer-21 trainer-22 trainer-23
#   6  trainer-24 trainer-25 trainer-26 trainer-27
#   7  trainer-28 trainer-29 trainer-30 trainer-31
#   8  env engine-0 driver tracker
#   9  engine-0.1
#  10  engine-1
#  11  engine-1.1
#  12  engine-2
#  13  engine-2.1
#  14  engine-3
#  15  engine-3.1
