#!/usr/bin/env bash
# The same command on every machine; the first one is the meeting point.
#   HEAD=host-of-the-first-machine MACHINES=4 ./recipes/launch/torchrun_multi_node.sh recipes/pretrain.py --config recipes/pretrain.yaml
# A machine that fails and comes back joins again, and the run continues from its last good checkpoint (output_dir must be shared).
set -euo pipefail
: "${HEAD:?name the first machine: HEAD=host}"
exec torchrun \
  --nnodes "${MACHINES:-1}" \
  --nproc_per_node "${DEVICES:-8}" \
  --rdzv_backend c10d \
  --rdzv_endpoint "${HEAD}:${PORT:-29500}" \
  --rdzv_id "${RUN:-hf_variants}" \
  --max_restarts "${RESTARTS:-3}" \
  "$@"
