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

# Kernels of other processors sum in another order. What this one has can be kept from using its
# newer instructions: all libraries as on a processor of 2008, or oneDNN and torch as before AVX-512.
OLDEST := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=generic \
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=haswell \
	NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
NUMERIC := tests/statistics tests/crf tests/paper tests/rules tests/attacks tests/simulation

.PHONY: help install demo test test-all test-processors lint docs tables bench release clean

help:
	@echo "make demo             three attackers among ten clients (half a minute)"
	@echo "make test             run the tests but those that wait for something else (a few minutes)"
	@echo "make test-all         run all tests: with servers, a browser, compilers, real images, the docs"
	@echo "make test-processors  run the tests of numbers with the instructions of older processors"
	@echo "make lint             check format, lint and types"
	@echo "make docs             build the documentation into site/"
	@echo "make tables           write the tables of README.md and the pages anew from results/"
	@echo "make bench            measure rounds and rules beside the peers' (an idle machine, eight minutes; SECTIONS=all takes half an hour)"
	@echo "make release          build the packages, and try them on every Python that is supported"
	@echo "make clean            remove the environment and what was built"

install: $(READY)

$(READY): pyproject.toml constraints.txt src/fedcrf/_version.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/fedcrf demo

PYTEST := $(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(PYTEST) -m "not slow"

test-all: $(READY)
	$(PYTEST)

test-processors: $(READY)
	$(OLDEST) $(PYTEST) -m "not slow" $(NUMERIC)
	$(AVX2) $(PYTEST) -m "not slow" $(NUMERIC)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tables: $(READY)
	$(BIN)/python docs/tables.py

# The peers have an environment of their own: they bring a hundred packages along.
bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks $(SECTIONS)

$(BENCH)/.ready: pyproject.toml constraints.txt benchmarks/constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt \
		--constraint benchmarks/constraints.txt --editable ".[bench]"
	@touch $@

# Publishes nothing; docs/release.md has the steps around it.
release:
	bash .ci/release

clean:
	rm -rf $(VENV) $(BENCH) build dist site
