#!/bin/bash
#SBATCH --job-name=grpokit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

# Submit with: sbatch examples/slurm.sh CONFIG RUN_FOLDER
# All machines must see the run folder. A lost process is started again by torchrun. A lost machine, a preemption and the
# time limit put the job back into the queue. It always continues from the last checkpoint.
set -euo pipefail

config=${1:?a preset or a config file}
folder=${2:?a run folder that all machines see}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

out_of_time() {  # five minutes before the limit: end after this step, and queue again
  # SIGTERM to one process of the run lets all save after the step; torchrun itself would wait for 30 seconds only.
  worker=$(pgrep --newest -f -- "-m grpokit train $config run.dir=$folder( |$)" || true)
  if [ -n "$worker" ]; then
    kill -TERM "$worker" || true
    timeout 240 tail --pid="$worker" -f /dev/null || true
  fi
  kill -TERM "$training" || true
  wait "$training" && exit 0
  scontrol requeue "$SLURM_JOB_ID"
}
trap out_of_time USR1

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${GPUS:-8}" --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:29500" \
  -m grpokit train "$config" "run.dir=$folder" --resume &
training=$!
wait "$training"
