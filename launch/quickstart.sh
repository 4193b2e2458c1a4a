#!/usr/bin/env bash
# Set up, then run the main job: DRO on the reversal task, on all GPUs or else on the CPU.
# Arguments go to launch/pretrain_rl.py, e.g. launch/quickstart.sh --dro-beta 0.2
set -euo pipefail
source "$(dirname "$0")/setup.sh"
set_up

if has_gpu; then
    processes=$(nvidia-smi -L | grep -c GPU)
else
    processes=2
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(( $(nproc) / processes > 0 ? $(nproc) / processes : 1 ))}
exec "$VENV/bin/torchrun" --nproc-per-node "$processes" "$REPO/launch/pretrain_rl.py" --loss-mode dro "$@"
