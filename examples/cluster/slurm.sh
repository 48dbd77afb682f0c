#!/bin/bash
#SBATCH --job-name=dora
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@300
# A Ray cluster of the nodes of this allocation, and a run on it: sbatch slurm.sh RECIPE RUN_DIRECTORY
#
# RUN_DIRECTORY is on storage that the nodes share. Five minutes before the time is over the run is told to end:
# the step in progress ends and a checkpoint is written. The same command goes on with it.
set -euo pipefail
recipe=$1 run=$2
head=$(hostname)
address=$(hostname --ip-address | cut -d' ' -f1):6379

# --block: the node's Ray ends with its step, and the step with the allocation.
ray start --head --node-ip-address="${address%:*}" --port="${address##*:}" --include-dashboard=false
srun --nodes="$((SLURM_JOB_NUM_NODES - 1))" --exclude="$head" --overlap ray start --address="$address" --block &
trap 'ray stop --force' EXIT
until [ "$(ray status 2>/dev/null | grep -c ' node_')" -ge "$SLURM_JOB_NUM_NODES" ]; do sleep 2; done

dora cluster check --directory "$(dirname "$run")"
if [ -e "$run/setup.json" ]; then
  dora train --resume "$run" &
else
  dora train "$recipe" --set "run.directory=$run" --set cluster.ray=auto &
fi
train=$!
trap 'kill -TERM $train' TERM
wait "$train" || wait "$train"
