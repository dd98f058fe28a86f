#!/usr/bin/env bash
# What a GPU should show first, in a quarter of an hour: two calls of at most seven minutes each, the most telling part first.
#
#   tools/gpu_quarter.sh carry     # on a machine with a network: wheels into .carry/, to be copied along (25 MB)
#   tools/gpu_quarter.sh first     # on the GPU machine: doctor, tests, presets beside the CPU's, GLM-Image's tokens
#   tools/gpu_quarter.sh second    # there: memory and phases of GLM-Image at 512 x 512, a language model
#   tools/gpu_quarter.sh try       # anywhere: both calls on a CPU, with models of a megabyte
#
# The GPU machine needs no network. It has Python 3.12 with torch, transformers, accelerate, peft, httpx, pytest, xdist,
# scikit-image, pluggy, typer, rich and jinja2; .carry/ brings grpokit and the rest. No part keeps the next one from
# running. Logs go into the folder $OUT, and tables into docs/benchmarks.md by hand, with the card's name.
# Settings: PYTHON (python3), OUT (runs/gpu-quarter), SITE (where wheels are unpacked), SLOW (multiplies all time limits).
set -uo pipefail
SELF=$(realpath "$0")
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-runs/gpu-quarter}
SITE=$(realpath -m "${SITE:-$OUT/site}")
PACKAGES=(annotated-types diffusers narwhals plotly pydantic pydantic_core rapidfuzz starlette typing-inspection uvicorn)
PLUGINS=(hf http toy ssim lm glm-image diffusers)
PRESETS=(toy-lm toy-flow lm-arithmetic lm-guess diffusers-tiny glm-image-tiny glm-image-dit-tiny)
DEVICES=(cuda cpu)
IMAGES=(--size 512)  # the released architecture
LM=(--device cuda)
PYTEST=(-n 8)
if [ -n "${TRY:-}" ]; then
  DEVICES=(cpu)
  IMAGES=(--tiny)
  LM=(--layers 2 --hidden 64 --vocab 512 --prompts 2)
  PYTEST=(-n 2)  # collected, and skipped
  SLOW=${SLOW:-4}
fi
FAILED=0
mkdir -p "$OUT"

carry() { # with the versions of constraints.txt, for Linux on x86-64
  local pins=() package platform platforms=()
  for package in "${PACKAGES[@]}"; do
    pins+=("$(grep -iE "^${package//[-_]/[-_]}==" constraints.txt)")
  done
  for platform in 2_28 2_27 2_24 2_17; do
    platforms+=("--platform=manylinux_${platform}_x86_64")
  done
  rm -rf .carry
  "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" --platform=manylinux2014_x86_64 -d .carry "${pins[@]}" &&
    "$PYTHON" -m pip wheel -q --no-deps -w .carry . "${PLUGINS[@]/#/plugins/grpokit-}" || FAILED=1
  rm -rf build plugins/*/build
  du -sh .carry
}

part() { # NAME SECONDS COMMAND...: runs it within a limit; prints its time and the end of its log
  local name=$1 limit=$(($2 * ${SLOW:-1})) start=$SECONDS code
  shift 2
  timeout "$limit" "$@" >"$OUT/$name.log" 2>&1
  code=$?
  [ "$code" = 0 ] || FAILED=1
  printf '\n===== %s: exit code %s after %s s\n' "$name" "$code" "$((SECONDS - start))"
  tail -n 30 "$OUT/$name.log"
}

install() {
  part install 30 "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$SITE" .carry/*.whl
  export PYTHONPATH=$SITE HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
}

gpu_tests() { # all files with a test that is marked gpu, or that takes the device as a fixture
  local files
  mapfile -t files < <(grep -rlE 'mark\.gpu|\bdevice: str' tests "${PLUGINS[@]/#/plugins/grpokit-}" --include='test_*.py')
  "$PYTHON" -m pytest -q -m gpu "${PYTEST[@]}" --maxfail=25 -p no:cacheprovider -p no:nbmake "${files[@]}"
}

presets() { # three steps of each, on the GPU and on the CPU: the same rewards, but for rounding
  local device preset settings code=0
  export OMP_NUM_THREADS=2
  for device in "${DEVICES[@]}"; do
    for preset in "${PRESETS[@]}"; do
      settings=(trainer.steps=3 data.limit=8 "trainer.device=$device" "run.dir=$OUT/$preset-$device")
      [[ $preset != *-tiny ]] || settings+=(policy.dtype=float32)
      "$PYTHON" -m grpokit train "$preset" "${settings[@]}" --overwrite >"$OUT/$preset-$device.log" 2>&1 &
    done
    wait
  done
  for preset in "${PRESETS[@]}"; do
    for device in "${DEVICES[@]}"; do
      printf '%-26s' "$preset $device"
      "$PYTHON" -c "$REWARDS" "$OUT/$preset-$device/metrics.jsonl" 2>/dev/null && continue
      echo "failed: $(tail -n 1 "$OUT/$preset-$device.log")"
      code=1
    done
  done
  return $code
}
REWARDS='
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
difference = [f"{name} {value:.2e}" for name, value in steps[0].items() if "logprob_diff" in name]
print(*(f"{step["reward"]:.5f}" for step in steps), *difference)
'

first() {
  nvidia-smi -L 2>/dev/null
  install
  part doctor 30 "$PYTHON" -m grpokit doctor
  part gpu_tests 120 "$SELF" gpu_tests
  part presets 90 "$SELF" presets
  part tokens 140 "$PYTHON" benchmarks/glm_image.py "${IMAGES[@]}" --part tokens gap --rounds 1
}

second() {
  install
  part memory 150 "$PYTHON" benchmarks/glm_image.py "${IMAGES[@]}" --part memory --rounds 1 --prompts 1
  part phases 130 "$PYTHON" benchmarks/glm_image.py "${IMAGES[@]}" --part phases --rounds 1 --prompts 1
  part lm 100 "$PYTHON" benchmarks/lm.py "${LM[@]}" --contenders grpokit,plain --rounds 1
}

case "${1:-}" in
  carry | first | second | gpu_tests | presets) "$1" || FAILED=1 ;;
  try)
    TRY=1 "$SELF" first || FAILED=1
    TRY=1 "$SELF" second || FAILED=1
    ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$SELF"; exit 2 ;;
esac
exit $FAILED
