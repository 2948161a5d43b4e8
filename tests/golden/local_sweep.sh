# Sweep folder: ROOT/runs/trial
# 4 points, all with: experiment=smoke
# folder, identity and what varies:
#   1  data=mini8,seed=1   IDENTITY  data=mini8 seed=1
#   2  data=mini8,seed=2   IDENTITY  data=mini8 seed=2
#   3  data=mini69,seed=1  IDENTITY  data=mini69 seed=1
#   4  data=mini69,seed=2  IDENTITY  data=mini69 seed=2
# They run on this machine, one after another, in this order.
