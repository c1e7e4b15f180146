# make PYTHON=python3 ... uses that interpreter as it is and installs nothing.
VENV   := .venv
PYTHON ?= $(VENV)/bin/python
comma  := ,
EXTRAS := test$(if $(shell command -v nvidia-smi),$(comma)gpu)

.PHONY: help bench test test-gpu plots tables profile clean setup
help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

bench: setup     ## measure the paper's sweep on the GPU, or a small one on the CPU; draw the figures
	@$(PYTHON) -m harness.run
	@$(PYTHON) -m harness.plots

test: setup      ## the tests that need no GPU
	@$(PYTHON) -m pytest tests --ignore=tests/gpu

test-gpu: setup  ## kernels and contenders against float64 on a GPU; writes results/DEVICE/verified.json
	@$(PYTHON) -m pytest tests/gpu

plots: setup     ## redraw every figure from the CSV files under results/, and the README's table
	@$(PYTHON) -m harness.plots
	@$(PYTHON) -m harness.tables --readme README.md

profile: setup   ## kernel by kernel, the paper's tables 3 to 5
	@$(PYTHON) -m harness.profile

clean:           ## remove the environment, caches and what a CPU measured
	rm -rf $(VENV) results/cpu plots/cpu *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(if $(filter $(VENV)/%,$(PYTHON)),$(VENV)/installed)

$(VENV)/installed: pyproject.toml
	python3 -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -e '.[$(EXTRAS)]'
	@touch $@
