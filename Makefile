# SPDX-License-Identifier: Apache-2.0
# The front door. CMake does the work; this names the few things people want and obtains CMake where it is missing.
#
#   make            build/pith, build/libpith.so, build/libpith.a
#   make demo       train a small model on four ranks, uncompressed and compressed, and show the difference
#   make test       build everything and run every test
#   make bench      measure every method on this machine
#   make eval       train with every method under the same rules, and report what each is worth (minutes)
#   make errors     the error of the mean over ranks, of every method by every algorithm, beside its paper
#   make site       the documentation with the reference as a site that works offline: build/site/index.html
#   make specs      docs/specs.md, from the list of methods
#   make install PREFIX=/usr/local
#   make wheel      a source distribution and a wheel for other machines, in dist; CUDA=1: a wheel with the module for GPUs
#   make fuzz       look for inputs that break a decoder or a parser (clang; FUZZ_SECONDS for each target)
#   make chaos      kill, stop and cut off ranks at random, and check every sum (CHAOS_FAULTS, CHAOS_SEED)
#   make models     check the models of the shm ring and of the rendezvous over all interleavings (spin)
#   make builds     test every build that must work: gcc, clang, and without AVX
#   make cuda       build/libpith_cuda.so, the module for GPUs (nvcc); CUDA_ARCH=all builds it for every GPU
#   make lint       what people and tools should not find: layers, symbols, format, types, clang-tidy, shellcheck
#   make packages   install what the tests can use beyond the compiler (Debian, Ubuntu; as root)
#   make format, make sanitize, make threads, make clean

BUILD  ?= build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
CHAOS_FAULTS ?= 2000
CHAOS_SEED ?= $(shell date +%s)
CMAKE_ARGS ?=

# Where tools/bootstrap.sh puts CMake and Ninja if the system has none.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

SOURCES = $(shell find include src tests examples modules bench cuda tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
PYTHON_SOURCES = python tests/python tests/cuda bench examples tools/site tools/check-look tools/check-licences tools/record-demo

.PHONY: all demo eval cuda wheel test python-test sanitize threads builds fuzz chaos models bench errors format format-check lint packages site specs install clean

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD)

# Ninja if there is one, else make. A generator, once chosen, stays with its folder.
$(BUILD)/CMakeCache.txt:
	@tools/bootstrap.sh
	@cmake -B $(BUILD) -S . $$(command -v ninja >/dev/null && echo "-G Ninja") -DCMAKE_EXPORT_COMPILE_COMMANDS=ON $(CMAKE_ARGS)

test: all
	@tools/python-env || [ $$? = 77 ]
	@tools/check-includes
	@tools/check-layers $(BUILD)
	@tools/check-symbols $(BUILD)
	@$(MAKE) --no-print-directory sanitize
	@$(MAKE) --no-print-directory threads
	@tests/run.sh $(BUILD)
	@$(MAKE) --no-print-directory python-test

# All tests once more, with every out-of-bounds access and undefined operation an error.
sanitize:
	@$(MAKE) --no-print-directory all BUILD=build-sanitize CMAKE_ARGS="-DPITH_SANITIZE=address,undefined"
	@tests/run.sh build-sanitize

# Those with several threads, with every data race an error. Modules are left out: their libraries are not watched, so nothing is required.
THREAD_TESTS = inproc_test comm_test algorithm_test reducer_test fault_test threads_test adapt_test carrier_test cuda_reducer_test moment_test
threads:
	@$(MAKE) --no-print-directory build-threads/CMakeCache.txt BUILD=build-threads CMAKE_ARGS="-DPITH_SANITIZE=thread"
	@cmake --build build-threads --target $(THREAD_TESTS)
	@PITH_TEST_REQUIRE= tests/run.sh build-threads $(THREAD_TESTS)

# The package as a user installs it, in a virtual environment, on two processes that take a file each, in the order of conftest.py. Where it
# cannot be made the tests are skipped, and the reason is given.
python-test:
	@tools/python-env; status=$$?; [ $$status = 77 ] || { [ $$status = 0 ] && .venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder; }

# Trains a small model uncompressed and compressed, and shows what that changes.
demo: all
	@tools/python-env || { echo "make demo needs Python 3.10 with pip, and torch: see above"; exit 1; }
	@.venv/bin/python examples/pytorch/demo.py --pith $(BUILD)/pith --out $(BUILD)/demo

# Goes on where it was stopped. The report is build/eval/index.html.
eval: all
	@tools/python-env || { echo "make eval needs Python 3.10 with pip, and torch: see above"; exit 1; }
	@.venv/bin/pith eval run quick -o $(BUILD)/eval

# Every compiler and instruction set that must work, each with all tests.
builds:
	@for build in "gcc -DCMAKE_C_COMPILER=gcc" "clang -DCMAKE_C_COMPILER=clang" "scalar -DPITH_SCALAR_ONLY=ON"; do \
	  $(MAKE) --no-print-directory all BUILD=build-$${build%% *} CMAKE_ARGS="$${build#* }" && \
	  tests/run.sh build-$${build%% *} || exit 1; done
	@for cpu in scalar avx2 avx512; do echo "PITH_CPU=$$cpu" && PITH_CPU=$$cpu tests/run.sh build-gcc || exit 1; done

fuzz:
	@tools/bootstrap.sh
	@tools/fuzz $(FUZZ_SECONDS)

# Bounded by the number of faults, and by 30 minutes.
chaos: all
	@$(BUILD)/tests/chaos --faults $(CHAOS_FAULTS) --seed $(CHAOS_SEED)

models:
	@tools/models

bench: all
	@$(BUILD)/pith bench codec --json $(BUILD)/bench.json
	@tools/bench-comm $(BUILD)

errors: all
	@tools/python-env || { echo "make errors needs Python 3.10 with pip: see above"; exit 1; }
	@.venv/bin/python bench/error_table.py

# One version of the formatter for everybody, from PyPI: others would disagree about a line here and there.
format:
	@tools/python-env --lint
	@.venv/bin/clang-format -i $(SOURCES)
	@.venv/bin/ruff format --quiet $(PYTHON_SOURCES)

format-check:
	@tools/python-env --lint
	@.venv/bin/clang-format --dry-run --Werror $(SOURCES)
	@.venv/bin/ruff format --check --quiet $(PYTHON_SOURCES) || { echo "format: run make format"; exit 1; }
	@echo "format: in order"

lint: all format-check
	@tools/check-includes
	@tools/check-layers $(BUILD)
	@tools/check-symbols $(BUILD)
	@tools/check-scripts
	@tools/check-licences
	@.venv/bin/ruff check $(PYTHON_SOURCES)
	@.venv/bin/python tools/site --check
	@.venv/bin/mypy & mypy=$$!; tools/check-code $(BUILD); code=$$?; wait $$mypy && exit $$code # mypy has one thread

# Also says what is wrong: dead links, public names without a comment, blocks of code that nothing tests.
site:
	@tools/python-env --site || { echo "make site needs Python 3.10 with pip: see above"; exit 1; }
	@.venv/bin/python tools/site --out $(BUILD)/site

specs:
	@tools/python-env || { echo "make specs needs Python 3.10 with pip: see above"; exit 1; }
	@.venv/bin/python tools/site --specs

packages:
	@tools/test-packages

# The module for GPUs, beside the library; needs nvcc. For this machine's GPU, or with CUDA_ARCH=all for every GPU.
CUDA_ARCH ?= native
cuda: $(BUILD)/CMakeCache.txt
	@cmake -B $(BUILD) -S . -DPITH_CUDA=ON -DPITH_CUDA_ARCHITECTURES="$(CUDA_ARCH)" | grep "CUDA module"
	@cmake --build $(BUILD) --target pith_cuda --parallel $$(nproc)

# What is published: dist/*.tar.gz and dist/*.whl.
wheel:
	@tools/bootstrap.sh
	@tools/python-env --wheel || { echo "make wheel needs Python 3.10 with pip: see above"; exit 1; }
	@.venv/bin/python tools/wheel $(if $(CUDA),--cuda)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) build-*[a-z] dist
