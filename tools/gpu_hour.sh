#!/usr/bin/env bash
# The first hour on a GPU, in slices of less than ten minutes each on an H100.
#
#   tools/gpu_hour.sh                    # lists the slices
#   tools/gpu_hour.sh setup tests        # runs some, in this order; each command is printed first
#   DRY=1 tools/gpu_hour.sh all          # prints the commands and runs none
#
# `setup` installs the packages of this repository over the machine's own torch. On a machine without a network it takes
# what they need from the folder $WHEELS, which `pip download` fills elsewhere. Tables go into docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
OUT=${OUT:-runs/gpu-hour}

FAILED=0

run() { # a command that fails does not keep the next one from running
  printf '+ %s\n' "$*"
  [ -n "${DRY:-}" ] || "$@" || { printf 'FAILED: %s\n' "$*"; FAILED=1; }
}

setup() { # the packages, over the torch that is there
  local packages=(-e '.[8bit]')
  for plugin in plugins/*/; do packages+=(-e "$plugin"); done
  run "$PYTHON" -m pip install --no-build-isolation ${WHEELS:+--no-index --find-links "$WHEELS"} pytest "${packages[@]}"
}

tests() { # all that is marked gpu
  run "$PYTHON" -m pytest -m gpu -p no:cacheprovider tests plugins
}

checks() { # the environment, and policies in bfloat16 and in float32
  run "$PYTHON" -m grpokit doctor
  for policy in glm-image-ar glm-image-dit diffusers-flow hf-lm; do
    run "$PYTHON" -m grpokit check "$policy"
    run "$PYTHON" -m grpokit check "$policy" dtype=float32
  done
}

presets() { # three steps of each preset that ships its model, then the same on the CPU
  for device in cuda cpu; do
    for preset in toy-lm toy-flow toy-glyph lm-arithmetic lm-countdown; do
      run "$PYTHON" -m grpokit train "$preset" trainer.steps=3 "trainer.device=$device" "run.dir=$OUT/$preset-$device" --overwrite
    done
    for preset in diffusers-tiny glm-image-tiny glm-image-dit-tiny glm-glyph glm-glyph-dit; do
      run "$PYTHON" -m grpokit train "$preset" trainer.steps=3 "trainer.device=$device" policy.dtype=float32 \
        "run.dir=$OUT/$preset-$device" --overwrite
    done
  done
  run "$PYTHON" -m grpokit report "$OUT"/*-cuda "$OUT"/*-cpu
}

plan() { # what the planner expects of this card, to compare the tables of GLM-Image with
  run "$PYTHON" -m grpokit plan glm-image-t2i
  run "$PYTHON" -m grpokit plan glm-image-t2i "policy.size=[512, 512]"
  run "$PYTHON" -m grpokit plan qwen-gsm8k
}

lm() { # a language model of 1.5B parameters beside a plain loop, with cuDNN's attention and without
  run "$PYTHON" benchmarks/lm.py --device cuda --contenders grpokit,plain --rounds 2
  run env TORCH_CUDNN_SDPA_DEPRIORITIZED=1 "$PYTHON" benchmarks/lm.py --device cuda --contenders grpokit,plain --rounds 2
}

lm_table() { # the main table
  run "$PYTHON" benchmarks/lm.py --device cuda --contenders grpokit,plain --table main
}

head() { # the memory of the last layer
  run "$PYTHON" benchmarks/head.py --device cuda --write
}

tokens() { # GLM-Image: tokens per second, and how far log-probs of drawing are from those of training
  run "$PYTHON" benchmarks/glm_image.py --part tokens gap --write
}

phases() { # GLM-Image: seconds of each phase
  run "$PYTHON" benchmarks/glm_image.py --part phases --write
}

memory() { # GLM-Image: the peak of whole steps
  run "$PYTHON" benchmarks/glm_image.py --part memory --write
}

loop() { # GLM-Image: beside the stock pipeline
  run "$PYTHON" benchmarks/glm_image.py --part loop --write
}

small() { # GLM-Image at 512 x 512, all parts
  run "$PYTHON" benchmarks/glm_image.py --size 512 --write
}

slices=(setup tests checks presets plan lm lm_table head tokens phases memory loop small)
if [ $# = 0 ]; then
  for slice in "${slices[@]}"; do
    printf '%-9s %s\n' "$slice" "$(sed -n "s/^$slice() { # //p" "$0")"
  done
  exit
fi
[ "$*" != all ] || set -- "${slices[@]}"
for slice in "$@"; do
  case " ${slices[*]} " in
    *" $slice "*) "$slice" ;;
    *) echo "There is no slice '$slice'. Slices: ${slices[*]}, all." >&2; exit 2 ;;
  esac
done
exit $FAILED
