# On a fresh machine: `make demo` and `make test`. Each makes its own .venv and installs what it
# needs. Any Python >= 3.11 on PATH will do; CPU or CUDA torch, whichever the machine gets.
#
#   PYTHON=...       the interpreter to build .venv from
#   TORCH=...        of `make test-torch`, a version of .ci/matrix.txt, e.g. TORCH=2.13.0
#   TORCH_INDEX=...  an extra package index, e.g. the one of PyTorch's CPU builds
#   SEEDS=...        how many programs `make fuzz` runs
#   THREADS=...      torch's threads in each test process (1); `make test CAPABILITY=default` or
#   CAPABILITY=...   avx2: the instruction set of its CPU kernels. `make test-machines` runs them all
#   ARGS=...         more arguments for the demo, the tests, `make fuzz` or the benchmark

VENV ?= .venv
SEEDS ?= 1000
ARGS ?=
WORKERS ?= 2
THREADS ?= 1
CAPABILITY ?=
PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Column $1 of a version's row in .ci/matrix.txt; the newest is the first.
column = $(shell awk '$$1 == "$(TORCH)" {print $$$(1)}' .ci/matrix.txt)
VERSIONS := $(shell awk '/^[0-9]/ {print $$1}' .ci/matrix.txt)
TORCH ?= $(firstword $(VERSIONS))
TRITON := $(call column,2)
FBGEMM := $(filter-out -,$(call column,3))

# With an NVIDIA GPU the tests run on the torch that is pinned too, or on $(TORCH_REQUIREMENT).
# A CPU build does not ask for Triton, but the tests need its compiler and its interpreter.
TORCH_REQUIREMENT ?= torch==$(TORCH)
TRITON_REQUIREMENT ?= $(if $(TRITON),triton==$(TRITON))

BIN := $(VENV)/bin
# A constraint of the machine's must not choose another torch than is asked for.
PIP := PIP_CONSTRAINT=/dev/null $(BIN)/python -m pip install -qq --disable-pip-version-check \
	-c .ci/constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# One thread a worker: pytest-xdist is the parallelism, and Inductor's own pool would double it.
SERIAL := OMP_NUM_THREADS=$(THREADS) TORCHINDUCTOR_COMPILE_THREADS=1 \
	$(if $(CAPABILITY),ATEN_CPU_CAPABILITY=$(CAPABILITY))
PYTEST := $(SERIAL) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
MATRIX := $(SERIAL) $(BIN)/python -m tests.matrix $(TORCH) --workers $(WORKERS)

.PHONY: demo test test-torch test-matrix test-full test-machines fuzz bench doctor lint types format docs benchmarks screenshots clean help

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-base
	$(BIN)/python -m gdpa_inductor demo $(ARGS)

# The CuTe DSL is for the tests of the Blackwell kernels, which need no GPU (docs/emulator.md).
test: $(VENV)/.stamp-clients $(VENV)/.stamp-cute $(VENV)/.stamp-fbgemm
	$(MATRIX) $(ARGS)

# On another torch, in a folder of its own: what .ci/matrix.txt and tests/matrix.py say.
test-torch:
	$(MAKE) TORCH=$(TORCH) VENV=.venv-$(TORCH) test

# All versions, and docs/versions.md of what they showed.
test-matrix:
	for version in $(VERSIONS); do \
		$(MAKE) TORCH=$$version VENV=.venv-$$version \
			ARGS='$(ARGS) --record .ci/matrix.jsonl' test || exit 1; done
	.venv-$(firstword $(VERSIONS))/bin/python -m docs.tools.versions

# Every case, and every kernel compiled anew.
test-full: $(VENV)/.stamp-clients $(VENV)/.stamp-cute
	PTX_CACHE=0 $(PYTEST) $(ARGS)
	$(MAKE) fuzz SEEDS=10000

# Instruction sets × threads, and 20 seeds of the tests that judge by the error rule: hours.
test-machines: $(VENV)/.stamp-clients
	$(BIN)/python -m tests.machines $(ARGS)

fuzz: $(VENV)/.stamp-test
	$(SERIAL) $(BIN)/python -m tests.adversary --judge on --seeds $(SEEDS) --workers $(WORKERS) $(ARGS)

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m gdpa_inductor bench $(or $(ARGS),dense)

doctor: $(VENV)/.stamp-base
	$(BIN)/python -m gdpa_inductor doctor $(ARGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .

types: $(VENV)/.stamp-dev
	$(BIN)/mypy

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.stamp-docs
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html

# Tables and charts of docs/benchmarks.md, and README's chart, from docs/measurements/*.jsonl.
benchmarks: $(VENV)/.stamp-dev
	$(BIN)/python -m docs.tools.benchmarks

# Pages as pictures in docs/_build/pictures; needs Chromium on PATH.
screenshots: docs
	$(PYTHON) -m docs.tools.screenshots
	$(BIN)/python -m docs.tools.report

clean:
	rm -rf .venv .venv-* .cache docs/_build build dist *.egg-info

# By the versions asked for, so that another one is installed where a folder has one already.
STAMP := $(VENV)/.stamp-torch-$(subst torch==,,$(TORCH_REQUIREMENT))

$(STAMP):
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 on PATH; set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH_REQUIREMENT) $(TRITON_REQUIREMENT) into $(VENV)"
	$(PIP) '$(TORCH_REQUIREMENT)' $(if $(TRITON_REQUIREMENT),'$(TRITON_REQUIREMENT)') numpy
	@rm -f $(VENV)/.stamp-*
	@touch $@

$(VENV)/.stamp-base: pyproject.toml $(STAMP)
	$(PIP) -e .
	@touch $@

# A build for this torch, if there is one.
$(VENV)/.stamp-fbgemm: $(STAMP)
	$(if $(FBGEMM),$(PIP) --no-deps fbgemm-gpu-cpu==$(FBGEMM))
	@touch $@

# .stamp-test installs the extra `test`, and so on.
$(VENV)/.stamp-%: $(VENV)/.stamp-base .ci/constraints.txt
	$(PIP) -e '.[test$(if $(filter-out test,$*),$(comma)$*)]'
	@touch $@

comma := ,

.PRECIOUS: $(VENV)/.stamp-%
