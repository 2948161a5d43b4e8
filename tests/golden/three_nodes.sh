#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --comment='a trial'
#SBATCH --constraint=cpu
#SBATCH --cpus-per-task=8
#SBATCH --job-name=smoke
#SBATCH --mail-type=END
#SBATCH --mem=24576M
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=ROOT/runs/smoke/slurm/%j_0_log.out
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --reservation=week
#SBATCH --signal=USR2@120
#SBATCH --time=240
#SBATCH --wckey=submitit

# setup
module load gcc

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output ROOT/runs/smoke/slurm/%j_%t_log.out --kill-on-bad-exit=1 --container-image=/images/glm52.sqsh --container-mounts=/data:/data,/scratch:/scratch PYTHON -u -m submitit.core._submit ROOT/runs/smoke/slurm

# Roles of each node
#   0  trainer-0
#   1  engine-0
#   2  env driver tracker
