#!/usr/bin/env bash
# Everything that a CPU cannot show, in one run a machine:  bench/gpu/run.sh one|two [python]
# Needs the pinned requirements and a CUDA torch; NVLink multicast stays off.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${2:-python3} out=${OUT:-$(mktemp -d)} scratch=$(mktemp -d)
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export HF_HUB_OFFLINE=1
part() { echo; echo "== $* =="; date -u +%H:%M:%S; }
tuneline() { timeout 240 "$python" -m tuneline.cli.main "$@"; local code=$?; echo "exit $code"; return $code; }
keep() { cp -r "$1" "$out/$2" 2>/dev/null || true; }

part facts
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
"$python" -c 'import os, torch, ray, trl, transformers, kfp; print("torch", torch.__version__, "cuda", torch.version.cuda, "ray", ray.__version__, "trl", trl.__version__, "transformers", transformers.__version__, "kfp", kfp.__version__, "cpus", os.cpu_count())'

if [ "$1" = one ]; then
  part "the local-tiny pipeline, one worker on CUDA"
  tuneline run --store "$scratch/store" --set gpu_workers=1 --set train_seed=0
  grep -hE "GPU|CUDA|cuda" "$scratch"/store/runs/*/logs/*.log | head -5
  tail -n 30 "$scratch"/store/runs/*/logs/*a1.log > "$out/tiny.log" 2>&1
  part "Qwen2.5-0.5B geometry"
  "$python" bench/gpu/half_billion.py "$scratch/half" &&
    tuneline run --store "$scratch/store" --set gpu_workers=1 --set model_id="$scratch/half" --set train_learning_rate=1e-5 \
      --set train_steps=60 --set train_save_every=30 --set output_shard_mb=500 --set output_model_name=half-billion
  tail -n 30 "$scratch"/store/runs/*/logs/*a1.log > "$out/half.log" 2>&1
  for file in "$scratch"/store/runs/*/metrics/curve.png; do cp "$file" "$out/curve-$(basename "$(dirname "$(dirname "$file")")").png"; done
  part "conversion at size"
  TMPDIR=$scratch timeout 330 "$python" bench/convert.py --size-gb "${SIZE_GB:-14}" --pairs 3 --inputs dcp --cache cold --peers "${PEERS:-cp}" --threads 4,16 --folder "$scratch/bench" | tee "$out/convert.txt"
else
  part "the local-tiny pipeline, two workers over NCCL"
  tuneline run --store "$scratch/store" --set gpu_workers=2
  part "task, worker and head killed, on CUDA"
  timeout 240 "$python" -m pytest tests/local/test_killed.py -q -p no:cacheprovider 2>&1 | tail -n 15
  part "FSDP2 over NCCL, Qwen2.5-0.5B geometry"
  mkdir -p "$scratch/fsdp"
  "$python" bench/gpu/half_billion.py "$scratch/fsdp/base" && timeout 200 "$python" bench/gpu/fsdp2.py "$scratch/fsdp" | tee "$out/fsdp2.txt"
fi
part end
