# Two commands are enough: `make demo` and `make test`. Both make .venv with pinned packages first.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The tests on real data use this folder where it is there, and skip with a reason where it is not.
ifneq ($(wildcard ../shared/data),)
export FEDCRF_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help install demo test lint bench clean

help:
	@echo "make demo   run the demonstration on the digits (about a minute)"
	@echo "make test   run the tests"
	@echo "make lint   check format, lint and types"
	@echo "make bench  measure a round, the server's rule and the command line"
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
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/round.py
	$(BIN)/python benchmarks/aggregation.py

clean:
	rm -rf $(VENV) build dist
