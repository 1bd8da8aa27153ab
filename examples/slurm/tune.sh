#!/bin/bash
# One sweep by an array of jobs, each measuring its layers, then one job that compares the model:
#
#   tune=$(sbatch --parsable --array=0-3 tune.sh)
#   sbatch --dependency=afterok:$tune tune.sh
#
# The array counts from 0. Records count for one kind of processor: add --constraint where nodes
# differ.
#SBATCH --job-name=tune
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --cpus-per-task=2
#SBATCH --hint=nomultithread
set -euo pipefail

: "${MODEL:=$HOME/model.onnx}"
# A folder that all nodes mount, or s3://BUCKET/records (pip install s3fs).
export TVM_BLISLIKE_RECORDS="${TVM_BLISLIKE_RECORDS:-$HOME/records/}"

shard=()
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    shard=(--shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT")
fi
tvm-blislike tune "$MODEL" --threads "$SLURM_CPUS_PER_TASK" "${shard[@]}"
