#!/bin/bash
# A run as a job of a Ray cluster that is there: ./ray_job.sh http://HEAD:8265 RECIPE RUN_DIRECTORY
#
# The job's process is the orchestrator, on the head; what it starts is on the nodes. The nodes need dora-rl,
# and RUN_DIRECTORY on storage that all of them share. `ray job stop ID` interrupts the run, which writes a
# checkpoint; the same command goes on with it.
set -euo pipefail
dashboard=$1 recipe=$2 run=$3
if [ -e "$run/setup.json" ]; then
  command=(dora train --resume "$run")
else
  command=(dora train "$recipe" --set "run.directory=$run" --set cluster.ray=auto)
fi
exec ray job submit --address "$dashboard" -- "${command[@]}"
