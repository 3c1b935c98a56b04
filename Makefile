# `make demo` and `make test` are all a newcomer needs; both set the project up on first use.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two compiler processes need about 3 GB of memory; raise it on a larger machine.
JOBS ?= 2
PYTEST_ARGS ?=
DEMO_ARGS ?=
# Where else to look for PyTorch. Where pip would fetch its CUDA build, this gets the smaller one for
# the CPU: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Another release of PyTorch, 2.14 or 2.15, for every command but `help`, `format` and `clean`.
TORCH ?=
TORCH_RELEASE ?= 2.13.0
BENCH_ARGS ?=
FUZZ_ARGS ?=

# Every pip, also the one that pip itself starts, is held to the PyTorch of this project.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PATH := $(CURDIR)/$(BIN):$(PATH)

TORCH_STAMP := $(VENV)/.stamp-torch
TOOLS_STAMP := $(VENV)/.stamp-tools
# .stamp-test, .stamp-lint, .stamp-docs: packages that only these commands need.
EXTRA_STAMP := $(VENV)/.stamp-
INSTALL_STAMP := $(VENV)/.stamp-install
CORE_STAMP := build/.stamp-core
# Not in the environment itself; tests/distributed/torchtitan-requirements.txt says why.
TITAN := $(VENV)/torchtitan
TITAN_STAMP := $(TITAN)/.stamp-titan
# Client libraries, in an environment of their own that sees what is in .venv: transformers and others
# change what they import by what is installed, and torchvision's build for CUDA can't be imported
# beside PyTorch's for the CPU, so that it is in a folder that only its tests look into.
CLIENTS := $(VENV)/clients
CLIENTS_STAMP := $(CLIENTS)/.stamp-clients
CSRC := $(shell find torch_neuronx/csrc -type f \( -name '*.cpp' -o -name '*.h' \) 2>/dev/null)
CHECKED := $(wildcard torch_neuronx nki neuron_dtypes neuronxcc nrtpy neuron_tools tests examples benchmarks)

# What `make check` runs: everything without a device, every door once, and of the compiler and the
# kernel language what is quick because it is NumPy: the tensor IR, passes, checks, instructions.
CHECKS := tests/nodevice tests/smoke $(addprefix tests/compiler/test_,$(addsuffix .py,ir_graphs \
  ir_reference ir_table ir_text passes_autocast passes_exact passes_rules passes_structure \
  codegen_verify lowering_memory neff_golden foreign_memory options)) \
  $(wildcard $(addprefix tests/nki/test_,isa_*.py checks_*.py language_*.py lint.py nki_refusals.py))
# Random programs, eager ones and those whose graphs meet other sizes.
PROGRAMS := $(addprefix tests/programs/test_programs.py::test_,eager_programs programs_with_dynamic_shapes)
# What runs once more with operators enqueued; `make test-all` does that with everything.
STRICT := $(addprefix tests/device/test_,$(addsuffix .py,activation_layouts amp attention autograd \
  copy eager_queue fused_optimizers layouts misuse modules nn ops rng scaled_products storage \
  streams_events strided_parameters varlen_attention zero_tensors)) $(PROGRAMS) \
  $(addprefix tests/distributed/test_,clients_ddp.py clients_fsdp.py clients_groups.py \
  all_to_all.py) tests/compiler/test_dynamo_device.py tests/serving/test_engine.py
# And with what waits joined into programs, which shows where tensors are large or many.
FUSED := $(addprefix tests/device/test_,$(addsuffix .py,autograd fused_optimizers memory nn rng \
  shared_memory storage streams_events)) $(PROGRAMS) tests/distributed/test_clients_fsdp.py \
  tests/serving/test_engine.py
# They use no device, so that no mode of it changes anything in them.
WITHOUT_DEVICE := tests/frontends tests/nki tests/nodevice
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest \
  -n $${TEST_JOBS:-auto} --dist worksteal --durations-file=build/durations.json
IN_STRICT_MODE := --eager-mode=strict --durations-file=build/durations_strict.json
IN_FUSED_MODE := --eager-mode=fused --durations-file=build/durations_fused.json

.PHONY: help setup titan demo check test test-all test-clients fuzz bench lint format docs wheel manylinux clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

ifneq ($(TORCH),)
# A native core fits one release, so another has a copy of the tracked files, with an environment of
# its own. Files keep their times: the second run builds what has changed.
RELEASE := $(filter $(TORCH).%,2.13.0 2.14.1 2.15.0)
ifeq ($(RELEASE),)
$(error TORCH=$(TORCH) is not supported; 2.13, 2.14 and 2.15 are)
endif
ELSEWHERE := build/torch-$(TORCH)

setup titan demo check test test-all test-clients fuzz bench lint docs wheel manylinux:
	mkdir -p $(ELSEWHERE)
	git ls-files -z ':!constraints.txt' | tar --create --null --files-from - | tar --extract --directory $(ELSEWHERE)
	sed 's/^torch==.*/torch==$(RELEASE)/' constraints.txt > $(ELSEWHERE)/constraints.new
	cmp -s $(ELSEWHERE)/constraints.new $(ELSEWHERE)/constraints.txt || cp $(ELSEWHERE)/constraints.new $(ELSEWHERE)/constraints.txt
	$(MAKE) -C $(ELSEWHERE) $@ TORCH= TORCH_RELEASE=$(RELEASE)

else
setup: $(CORE_STAMP) $(EXTRA_STAMP)test $(EXTRA_STAMP)lint $(EXTRA_STAMP)docs ## Create .venv, install PyTorch 2.13 and the rest, build the native core

titan: $(TITAN_STAMP) ## Install torchtitan beside the environment (370 MB to fetch, 1.3 GB installed)

demo: $(CORE_STAMP) ## Train on digits, on one core and two, embed sentences, print what was emulated
	$(BIN)/python -m examples.demo $(DEMO_ARGS)

check: $(CORE_STAMP) $(EXTRA_STAMP)test ## What needs no device, and every door once: some minutes, before a commit
	$(PYTEST) $(CHECKS) $(PYTEST_ARGS)

test: $(CORE_STAMP) $(EXTRA_STAMP)test ## Run all test tiers but what is slow (one process per core; PYTEST_ARGS is passed on)
	$(PYTEST) $(PYTEST_ARGS)
	$(PYTEST) $(IN_STRICT_MODE) $(STRICT) $(PYTEST_ARGS)
	$(PYTEST) $(IN_FUSED_MODE) $(FUSED) $(PYTEST_ARGS)

test-all: $(CORE_STAMP) $(EXTRA_STAMP)test $(TITAN_STAMP) ## The same, slow tests, and more samples and types of every operator
	$(PYTEST) -m 'exhaustive or not exhaustive' $(PYTEST_ARGS)
	$(PYTEST) $(IN_STRICT_MODE) -m 'not exhaustive' $(addprefix --ignore=,$(WITHOUT_DEVICE)) $(PYTEST_ARGS)
	$(PYTEST) $(IN_FUSED_MODE) -m 'not exhaustive' $(addprefix --ignore=,$(WITHOUT_DEVICE)) $(PYTEST_ARGS)

test-clients: $(CLIENTS_STAMP) ## Programs of client libraries: timm, trl, torchao, ray and others (about 900 MB installed)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(CLIENTS)/bin/python -m pytest tests/clients -m "not exhaustive" $(PYTEST_ARGS)

# Generators of their own; the others are Atheris', which mutates files.
FUZZ_nki := tests.fuzz.kernels
FUZZ_nki1 := tests.fuzz.first_generation
FUZZ_operators := tests.fuzz.operator_values
FUZZ_histories := tests.fuzz.histories
FUZZ_programs := tests.programs

fuzz: $(CORE_STAMP) $(EXTRA_STAMP)test ## Search for crashing files, wrong kernels or programs: FUZZ=hlo, command, neff, stablehlo, nki, nki1, operators, histories, programs
ifneq ($(FUZZ_$(FUZZ)),)
	$(BIN)/python -m $(FUZZ_$(FUZZ)) $(FUZZ_ARGS)
else
	$(BIN)/python -m pip install --quiet 'atheris>=3'
	$(BIN)/python -m tests.fuzz $(or $(FUZZ),neff) $(FUZZ_ARGS)
endif

bench: $(CORE_STAMP) $(EXTRA_STAMP)test ## Measure against cpu, Inductor and XLA; refuses to report on a busy machine
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(CORE_STAMP) $(EXTRA_STAMP)test $(EXTRA_STAMP)lint ## Style, types and C++ format, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)
	@$(BIN)/clang-format --dry-run -Werror $(CSRC)

docs: $(CORE_STAMP) $(EXTRA_STAMP)docs ## Build the documentation into build/site, broken links are errors
	$(BIN)/mkdocs build --strict --quiet
	@echo "documentation: build/site"

# The environment of the check sees PyTorch and the other packages of .venv, but nothing of this
# folder, and no compiler.
wheel: $(CORE_STAMP) ## Build dist/*.whl, and run it in an environment of its own
	rm -rf dist build/wheel-check
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	$(BIN)/python -m venv --without-pip build/wheel-check
	$(BIN)/python -c 'import pathlib, sysconfig; (here,) = pathlib.Path("build/wheel-check").glob("lib/*/site-packages"); (here / "packages.pth").write_text(sysconfig.get_path("platlib"))'
	$(BIN)/python -m pip --python build/wheel-check/bin/python install --quiet --no-deps --force-reinstall dist/*.whl
	env -i PATH=build/wheel-check/bin HOME=$(CURDIR)/build/wheel-check build/wheel-check/bin/python -P tests/installed.py
	@ls -l dist

# libtorch and the OpenMP that it brings are the installed PyTorch's, never copies in a wheel.
SHARED := $(foreach library,torch torch_cpu torch_python c10 gomp,--exclude 'lib$(library).so*')

manylinux: wheel $(EXTRA_STAMP)manylinux ## The same with the tag of what it needs of a system, into dist/manylinux
	$(BIN)/auditwheel repair $(SHARED) --wheel-dir dist/manylinux dist/*.whl
	@ls -l dist/manylinux
endif

format: $(EXTRA_STAMP)lint ## Apply the formatters
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CSRC)

clean: ## Remove build products, keep .venv
	rm -rf build dist torch_neuronx/_C*.so

# PyTorch first and alone: the build below compiles against exactly this one.
$(TORCH_STAMP): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "TorchNeuron needs Python 3.11 or newer; run make with PYTHON=/path/to/python3.11")'
	@command -v c++ >/dev/null || { echo "TorchNeuron needs a C++20 compiler, e.g. apt install g++" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install torch==$(TORCH_RELEASE) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	touch $@

$(TOOLS_STAMP): $(TORCH_STAMP)
	$(BIN)/python -m pip install 'scikit-build-core>=1.1' 'cmake>=3.20' ninja numpy
	touch $@

$(INSTALL_STAMP): $(TOOLS_STAMP) pyproject.toml CMakeLists.txt
	$(BIN)/python -m pip install --no-build-isolation -e '.[demo]'
	touch $@

# TorchNeuron is installed already, so this adds only what the extra names.
$(EXTRA_STAMP)test $(EXTRA_STAMP)lint $(EXTRA_STAMP)docs $(EXTRA_STAMP)manylinux: $(EXTRA_STAMP)%: $(INSTALL_STAMP)
	$(BIN)/python -m pip install 'torchneuron[$*]'
	touch $@

$(TITAN_STAMP): tests/distributed/torchtitan-requirements.txt $(INSTALL_STAMP)
	rm -rf $(TITAN)
	$(BIN)/python -m pip install --no-deps --only-binary :all: --target $(TITAN) -r $<
	touch $@

$(CLIENTS_STAMP): pyproject.toml $(INSTALL_STAMP) $(EXTRA_STAMP)test
	$(BIN)/python -m venv --without-pip $(CLIENTS)
	$(CLIENTS)/bin/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("platlib"), "packages.pth").write_text("$(CURDIR)\n$(CURDIR)/" + str(next(pathlib.Path("$(VENV)").glob("lib/*/site-packages"))))'
	$(BIN)/python -m pip --python $(CLIENTS)/bin/python install 'torchneuron[clients]'
	rm -rf $(CLIENTS)/vision
	site=$$(echo $(CLIENTS)/lib/*/site-packages) && mkdir $(CLIENTS)/vision && mv $$site/torchvision* $(CLIENTS)/vision
	touch $@

# A change to the C++ is an incremental build, not an installation.
$(CORE_STAMP): $(INSTALL_STAMP) $(CSRC)
	$(BIN)/cmake --build build --parallel $(JOBS)
	touch $@
