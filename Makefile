# Two commands matter: make quickstart, make test. Both make .venv once and are quick the second time.
# TORCH_INDEX=https://…  takes torch from another wheel index (the plain wheel is a CUDA build of several GB).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Peers' packages whose CUDA parts cannot be built everywhere: their Python and Triton parts are test oracles.
NO_CUDA := MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE

.PHONY: install install-test quickstart test test-slow lint bench clean

install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("gridlaw needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test]'
	$(NO_CUDA) $(PIP) --no-build-isolation --no-deps causal-conv1d==1.7.0 mamba-ssm==2.3.2.post1
	touch $@

quickstart: install
	$(BIN)/gridlaw run quickstart

test: install-test  # two processes: whole grids in one, everything else in the other (tests/conftest.py)
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder

test-slow: install-test
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install-test
	$(BIN)/python tests/benchmarks/run.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
