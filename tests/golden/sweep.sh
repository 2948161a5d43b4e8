# Sweep folder: ROOT/runs/trial
# 8 points, all with: experiment=smoke cluster=slurm
# folder, identity and what varies:
#   1  seed=1,nodes=2,driver_node=0  IDENTITY  seed=1 cluster.nodes=2 cluster.driver_node=0
#   2  seed=1,nodes=2,driver_node=1  IDENTITY  seed=1 cluster.nodes=2 cluster.driver_node=1
#   3  seed=1,nodes=3,driver_node=0  IDENTITY  seed=1 cluster.nodes=3 cluster.driver_node=0
#   4  seed=1,nodes=3,driver_node=1  IDENTITY  seed=1 cluster.nodes=3 cluster.driver_node=1
#   5  seed=2,nodes=2,driver_node=0  IDENTITY  seed=2 cluster.nodes=2 cluster.driver_node=0
#   6  seed=2,nodes=2,driver_node=1  IDENTITY  seed=2 cluster.nodes=2 cluster.driver_node=1
#   7  seed=2,nodes=3,driver_node=0  IDENTITY  seed=2 cluster.nodes=3 cluster.driver_node=0
#   8  seed=2,nodes=3,driver_node=1  IDENTITY  seed=2 cluster.nodes=3 cluster.driver_node=1

# Job 1 of 2: points 1-2, 5-6
#!/bin/bash

# Parameters
#SBATCH --array=0-3%4
#SBATCH --job-name=smoke
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=ROOT/runs/trial/slurm/%A_%a_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=240
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output ROOT/runs/trial/slurm/%A_%a_%t_log.out --kill-on-bad-exit=1 PYTHON -u -m submitit.core._submit ROOT/runs/trial/slurm

# Roles of each node, points 1, 5
#   0  env trainer-0 driver tracker
#   1  engine-0

# Roles of each node, points 2, 6
#   0  trainer-0
#   1  env engine-0 driver tracker

# Job 2 of 2: points 3-4, 7-8
#!/bin/bash

# Parameters
#SBATCH --array=0-3%4
#SBATCH --job-name=smoke
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=ROOT/runs/trial/slurm/%A_%a_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=240
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output ROOT/runs/trial/slurm/%A_%a_%t_log.out --kill-on-bad-exit=1 PYTHON -u -m submitit.core._submit ROOT/runs/trial/slurm

# Roles of each node, points 3, 7
#   0  env trainer-0 driver tracker
#   1  engine-0
#   2  (none)

# Roles of each node, points 4, 8
#   0  trainer-0
#   1  env engine-0 driver tracker
#   2  (none)
