# make PYTHON=python3 ... uses that interpreter as it is and installs nothing.
VENV   := .venv
PYTHON ?= $(VENV)/bin/python
GPU    := $(if $(shell command -v nvidia-smi),$(shell echo ",cuda13,cudnn,test-gpu"))

ARCH   ?= sm_90a

.PHONY: help bench evidence test test-kernels wheel test-packaging test-gpu release-check sanitize lint plots docs profile clean setup
help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

bench: setup     ## measure the paper's sweep on the GPU, or a small one on the CPU; draw the figures
	@$(PYTHON) -m harness.run
	@$(PYTHON) -m harness report figures

evidence: setup  ## measure what the pages show, by every GPU of this host, and redraw it; goes on where it stopped
	@$(PYTHON) -m harness evidence

test: setup      ## the tests that need no GPU
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests -n auto --dist worksteal --ignore=tests/gpu --ignore=tests/kernels --ignore=tests/packaging

test-kernels: setup ## compile the kernel variants that auto may launch, for three architectures, on all cores
	@$(PYTHON) -m pytest tests/kernels

wheel: setup     ## build the wheel with Hopper's compiled kernels, on all cores; ARCH=sm_80: a wheel of others alone
	@mkdir -p build
	@$(PYTHON) -m cuconv.precompile --arch $(ARCH) --into build/$(ARCH).zip
	@$(PYTHON) -m release.wheel build/$(ARCH).zip

test-packaging: setup ## build the wheel and use it in an empty environment; build the site of the pages
	@$(PYTHON) -m pytest tests/packaging

test-gpu: setup  ## kernels and contenders against float64 on a GPU; writes results/DEVICE/verified.json
	@$(PYTHON) -m pytest tests/gpu

release-check: setup ## fail where kernels have changed since a GPU tested them, or pages show other results
	@$(PYTHON) -m harness.store.proof
	@$(PYTHON) -m harness report docs --check

sanitize: setup  ## compute-sanitizer's memcheck and racecheck over every algorithm, on a GPU
	@$(PYTHON) -m tests.gpu.sanitize

lint: setup      ## ruff (lint and format) and mypy
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

plots: setup     ## redraw every figure, table and page from the CSV files under results/
	@$(PYTHON) -m harness report figures
	@$(PYTHON) -m harness report page
	@$(PYTHON) -m harness report docs

docs: setup      ## build docs/ and an API reference as a site, build/docs/index.html
	@$(PYTHON) -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs

profile: setup   ## kernel by kernel, the paper's tables 3 to 5
	@$(PYTHON) -m harness kernels

clean:           ## remove the environment, caches and what a CPU measured
	rm -rf $(VENV) build results/cpu plots/cpu *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(if $(filter $(VENV)/%,$(PYTHON)),$(VENV)/installed) ## make .venv with all that the benchmark and the tests need; PYTHON=python3 uses another environment

$(VENV)/installed: pyproject.toml
	@echo "Setting up $(VENV) (a minute or two; activate it with: source $(VENV)/bin/activate)"
	@python3 -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -q -e '.[bench,test,lint,docs$(GPU)]'
	@touch $@
