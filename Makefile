# Two commands are enough: `make demo` and `make test`. Both make .venv with pinned packages first.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH ?= $(VENV)-bench

# Each has modules of tests to itself; half of their time they wait for processes they started.
TEST_PROCESSES ?= 2

# The tests on real data use this folder where it is there, and skip with a reason where it is not.
ifneq ($(wildcard ../shared/data),)
export FEDCRF_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help install demo test lint docs bench clean

help:
	@echo "make demo   three attackers among ten clients (half a minute)"
	@echo "make test   run the tests"
	@echo "make lint   check format, lint and types"
	@echo "make docs   build the documentation into site/"
	@echo "make bench  measure rounds and rules beside the peers' (an idle machine, ten minutes)"
	@echo "make clean  remove the environment and what was built"

install: $(READY)

$(READY): pyproject.toml constraints.txt src/fedcrf/_version.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/fedcrf demo

test: $(READY)
	$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The peers have an environment of their own: they bring a hundred packages along.
bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks $(SECTIONS)

$(BENCH)/.ready: pyproject.toml constraints.txt benchmarks/constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt \
		--constraint benchmarks/constraints.txt --editable ".[bench]"
	@touch $@

clean:
	rm -rf $(VENV) $(BENCH) build dist site
