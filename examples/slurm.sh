#!/bin/bash
#SBATCH --job-name=grpokit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue

# Submit with: sbatch examples/slurm.sh CONFIG RUN_FOLDER
# All machines must see the run folder. A job that Slurm starts again goes on from the last checkpoint.
set -euo pipefail

config=${1:?a preset or a config file}
folder=${2:?a run folder that all machines see}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

if [ -n "$(ls "$folder/checkpoints" 2>/dev/null)" ]; then
  training=("$folder" --resume)
else
  training=("$config" "run.dir=$folder")
fi

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${GPUS:-8}" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:29500" \
  -m grpokit train "${training[@]}"
