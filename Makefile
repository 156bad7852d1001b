# Each target is enough by itself on a fresh machine with Python 3.10 or newer (3.11 is what CI uses).
# pip compiles nothing: torch alone has thousands of files, of which Python compiles the few it imports itself.
# Installing is skipped while pyproject.toml and constraints.txt are older than the environment.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
SOURCES := auditor dashboard fused_replacements tests examples benchmarks docs/conf.py docs/reference_pages

.PHONY: audit test test-all test-thorough kernels docs lint types format ci clean

audit: $(VENV)/.installed  ## profile an example and print its report
	$(BIN)/fusion-audit run examples/llama_block.py

test: $(VENV)/.installed-dev  ## every test but the slow ones
	tests/side_by_side $(BIN)/python "not slow" "not slow and not thorough"

test-all: $(VENV)/.installed-dev
	tests/side_by_side $(BIN)/python "slow or not slow" "not thorough"

test-thorough: $(VENV)/.installed-dev  ## every variant of every replacement in every dtype, compiled: about an hour
	$(BIN)/python -m pytest -m thorough tests/replacements -n 2 --dist worksteal

kernels: $(VENV)/.installed  ## compile every Triton kernel for four GPUs and print what the gates say
	$(BIN)/python -m fused_replacements.gates

docs: $(VENV)/.installed-dev  ## write the pages that come from the code again, and build the site to docs/_build/html
	$(BIN)/python -m fused_replacements.docs
	cd docs && ../$(BIN)/python -m reference_pages
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html -d docs/_build/trees docs docs/_build/html

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

ci:  ## what CI runs, in an environment of its own
	.ci/run

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable . --constraint constraints.txt
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]' --constraint constraints.txt
	touch $@ $(VENV)/.installed
