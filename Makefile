# Every chore is one word. Each sets itself up: a virtual environment in this folder, packages from PyPI.
# Another Python: make test-quick PYTHON=python3.13 VENV=.venv-3.13

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
PYTHON ?=
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet
PYTEST := $(RUN) -m pytest
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist worksteal
TARGET ?= all
SECONDS ?= 600
UVLOOP_SUITES = $(wildcard tests/operations tests/storage)

.PHONY: help demo test test-quick test-uvloop test-beside test-floors test-core check format bench soak properties fuzz clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(VENV)/.installed-demo ## see what it does, on local disk; needs nothing but PyPI
	$(RUN) examples/demo.py

test: $(VENV)/.installed-test ## everything: all suites on real servers, then operations and storages on uvloop
	$(RUN) -m tests.servers
	$(PYTEST) $(PARALLEL)
	$(PYTEST) $(PARALLEL) --loop=uvloop $(UVLOOP_SUITES)

test-quick: $(VENV)/.installed-quick ## what needs no server: a minute or two
	$(PYTEST) $(PARALLEL) -m "not server and not soak and not thorough"

test-uvloop: $(VENV)/.installed-test ## operations and storages on uvloop
	$(RUN) -m tests.servers
	$(PYTEST) $(PARALLEL) --loop=uvloop $(UVLOOP_SUITES)

test-beside: $(VENV)/.installed-uv ## asyncckpt[s3,gcs] installs and works beside datasets, ray and boto3
	$(RUN) tests/installs/beside_stack.py

test-floors: $(VENV)/.installed-uv ## the quick tests on the oldest versions that pyproject.toml allows
	$(RUN) tests/installs/floors.py

test-core: $(VENV)/.installed-uv ## the core alone works, and what needs an extra names it
	$(RUN) tests/installs/core_alone.py

check: $(VENV)/.installed-check ## ruff (format and lint) and mypy --strict, on everything
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy --strict

format: $(VENV)/.installed-check ## let ruff rewrite what it can
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

bench: $(VENV)/.installed-bench ## the benchmarks (minutes)
	$(RUN) -m tests.servers
	$(RUN) -m benchmarks

soak: $(VENV)/.installed-test ## the long counts (an hour or so)
	$(RUN) -m tests.servers
	$(PYTEST) -m soak --timeout=0 --hypothesis-profile=soak

properties: $(VENV)/.installed-quick ## the property tests with many random examples
	$(PYTEST) $(PARALLEL) -m "hypothesis and not server and not soak" --timeout=0 --hypothesis-profile=soak

fuzz: $(VENV)/.installed-fuzz ## coverage-guided fuzzing of the parsers: TARGET=mlcp SECONDS=60 for a part
	$(RUN) -m fuzz $(TARGET) --seconds $(SECONDS)

clean: ## remove environments, caches and build output
	rm -rf .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What each set of stamps installs. torch is 5 GB, so only the tests and the benchmarks bring it. uv keeps what it
# has downloaded and links it into the next environment; where it can't reach an index that pip knows of, pip does it.
$(VENV)/.installed-demo: WANTED := -e .
$(VENV)/.installed-quick: WANTED := -e '.[all]' --group quick
$(VENV)/.installed-check: WANTED := -e '.[all]' --group check
$(VENV)/.installed-test: WANTED := -e '.[all]' --group test
$(VENV)/.installed-bench: WANTED := -e '.[all]' --group bench
$(VENV)/.installed-fuzz: WANTED := -e '.[all]' 'atheris>=2.3'
$(VENV)/.installed-uv: WANTED := uv

$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	@echo "installing $* into $(VENV) ..."
	$(PIP) install --upgrade 'pip>=25.1' uv
	$(RUN) -m uv pip install --quiet --python $(RUN) $(WANTED) || $(PIP) install $(WANTED)
	@touch $@

$(VENV)/bin/python:
	@set -e; for candidate in $(if $(PYTHON),$(PYTHON),python3 python3.11 python3.12 python3.13 python3.14); do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$("$$candidate" -V)"; exec "$$candidate" -m venv $(VENV); \
	  fi; \
	done; \
	echo "no Python >= 3.11 with venv found; give one with: make PYTHON=/path/to/python" >&2; exit 1
