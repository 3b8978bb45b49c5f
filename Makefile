# On a fresh machine: `make demo` and `make test`. Each makes its own .venv and installs what it
# needs. Any Python >= 3.10 on PATH will do; CPU or CUDA torch, whichever the machine gets.
#
#   PYTHON=...       the interpreter to build .venv from
#   TORCH=...        another torch requirement, e.g. TORCH='torch==2.11.0' TRITON='triton==3.6.0'
#   TORCH_INDEX=...  an extra package index, e.g. the one of PyTorch's CPU builds
#   SEEDS=...        how many programs `make fuzz` runs
#   THREADS=...      torch's threads in each test process (1); `make test CAPABILITY=default` or
#   CAPABILITY=...   avx2: the instruction set of its CPU kernels. `make test-machines` runs them all
#   ARGS=...         more arguments for the demo, the tests, the fuzzer or the benchmark

VENV ?= .venv
SEEDS ?= 1000
ARGS ?=
WORKERS ?= 2
THREADS ?= 1
CAPABILITY ?=
PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)

# With an NVIDIA GPU: the newest torch in range, with the Triton that it brings. Without: the pinned
# pair. A CPU build does not ask for Triton, but the tests need its compiler and its interpreter.
ifneq ($(shell nvidia-smi -L 2>/dev/null | head -n 1),)
TORCH ?= torch>=2.11,<2.16
TRITON ?=
else
TORCH ?= torch==2.13.0
TRITON ?= triton==3.7.1
endif

# The oldest Triton in range compiles and runs the kernels too, where the pair is pinned.
OLDEST := $(if $(TRITON),$(VENV)/.stamp-oldest)
KERNELS := tests/kernels/test_cubins.py tests/kernels/test_interpreter.py

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check \
	-c .ci/constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# One thread a worker: pytest-xdist is the parallelism, and Inductor's own pool would double it.
SERIAL := OMP_NUM_THREADS=$(THREADS) TORCHINDUCTOR_COMPILE_THREADS=1 \
	$(if $(CAPABILITY),ATEN_CPU_CAPABILITY=$(CAPABILITY))
PYTEST := $(SERIAL) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

.PHONY: demo test test-full test-oldest-torch test-without-gpu test-machines fuzz bench doctor lint types format docs benchmarks screenshots clean help

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-base
	$(BIN)/python -m gdpa_inductor demo $(ARGS)

# The CuTe DSL is for the tests of the Blackwell kernels, which need no GPU (docs/emulator.md).
test: $(VENV)/.stamp-clients $(VENV)/.stamp-cute $(OLDEST)
	$(PYTEST) -m "not slow" $(ARGS)
	$(if $(OLDEST),PYTHONPATH=$(abspath $(VENV)/oldest) $(PYTEST) -n 0 -m "oldest_triton and not slow" $(KERNELS))

test-full: $(VENV)/.stamp-clients $(VENV)/.stamp-cute
	$(PYTEST) $(ARGS)
	$(MAKE) fuzz SEEDS=10000

# The oldest torch in range: what is found, the operator, the CPU kernel. Some dtypes are left out.
test-oldest-torch:
	$(MAKE) VENV=$(VENV)-oldest-torch TORCH=torch==2.11.0 TRITON=triton==3.6.0 test-without-gpu

test-without-gpu: $(VENV)/.stamp-test
	$(PYTEST) -m "not slow" -k "not bf16 and not int32" tests/patterns tests/lowerings/test_cpu*.py \
		tests/kernels/test_cpu_*.py tests/test_*ops.py tests/test_reference.py tests/test_functional*.py

# Instruction sets × threads, and 20 seeds of the tests that judge by the error rule: hours.
test-machines: $(VENV)/.stamp-clients
	$(BIN)/python -m tests.machines $(ARGS)

fuzz: $(VENV)/.stamp-test
	$(SERIAL) $(BIN)/python -m tests.fuzz --seeds $(SEEDS) $(ARGS)

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m gdpa_inductor bench $(or $(ARGS),dense)

doctor: $(VENV)/.stamp-base
	$(BIN)/python -m gdpa_inductor doctor $(ARGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
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

clean:
	rm -rf $(VENV) $(VENV)-oldest-torch .cache docs/_build build dist *.egg-info

$(VENV)/.stamp-torch:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.10 on PATH; set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) $(TRITON) into $(VENV)"
	$(PIP) '$(TORCH)' $(if $(TRITON),'$(TRITON)') numpy
	@touch $@

$(VENV)/.stamp-base: pyproject.toml $(VENV)/.stamp-torch
	$(PIP) -e .
	@touch $@

# .stamp-test installs the extra `test`, and so on.
$(VENV)/.stamp-%: $(VENV)/.stamp-base .ci/constraints.txt
	$(PIP) -e '.[test$(if $(filter-out test,$*),$(comma)$*)]'
	@touch $@

comma := ,
# Beside the other one: a folder that goes first on the path.
$(VENV)/.stamp-oldest: $(VENV)/.stamp-torch
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target $(VENV)/oldest triton==3.6.0
	@touch $@

.PRECIOUS: $(VENV)/.stamp-%
