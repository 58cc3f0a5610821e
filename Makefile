# pyllmc - "make" is all that a newcomer needs; "make help" lists the rest.
#
#   PYTHON=python3       interpreter to install into and to test with (an active venv's comes first)
#   CXX=g++              C++17 compiler            NVCC=...            CUDA compiler, if not on PATH
#   CUDA_ARCHS="80 90"   GPU architectures; left out: those of the GPUs here, else 80 and 90
#   CUDNN=0              build the CUDA library without cuDNN; CUDNN_FRONTEND=DIR: where its frontend's headers are
#   OFFLINE=1            install nothing, work with the packages that are here
#   V=1                  show the commands

PYTHON ?= python3
export CXX NVCC CUDA_ARCHS CUDNN CUDA_HOME CUDNN_FRONTEND OFFLINE
MAKEFLAGS += --no-builtin-rules --no-print-directory
# All cores unless -j says otherwise; not when "clean" would race with what is built after it.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif
ifneq ($(filter clean,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

ifndef V
Q := @
endif
say = @printf '  %-5s %s\n' $1 $2
TOOLCHAIN := $(PYTHON) llmc/toolchain.py

# -- what is built from what -------------------------------------------------------------------------

COMMON := $(wildcard llmc/*.cpp llmc/*.cu)
HARNESS := $(wildcard tests/ops/harness.cu)
CPU_SOURCES := $(COMMON) $(wildcard llmc/cpu/*.cpp)
CUDA_SOURCES := $(COMMON) $(wildcard llmc/cuda/*.cpp llmc/cuda/*.cu)

CPU_OBJECTS := $(patsubst llmc/%,build/cpu/%.o,$(basename $(CPU_SOURCES)))
CUDA_OBJECTS := $(patsubst llmc/%,build/cuda/%.o,$(basename $(CUDA_SOURCES)))
HEADERS := $(wildcard llmc/*.h llmc/cpu/*.h)
CUDA_HEADERS := $(wildcard llmc/cuda/*.h llmc/cuda/*.cuh)
# The ops alone, for tests that call them one by one.
WHOLE := api model train_gpt2
CPU_OPS := $(filter-out $(WHOLE:%=build/cpu/%.o),$(CPU_OBJECTS)) $(HARNESS:tests/ops/%.cu=build/cpu/ops/%.o)
CUDA_OPS := $(filter-out $(WHOLE:%=build/cuda/%.o),$(CUDA_OBJECTS)) $(HARNESS:tests/ops/%.cu=build/cuda/ops/%.o)

# The CUDA backend's lanes on an emulated runtime, with the CPU's ops: tests/emulation.
EMULATION := $(wildcard tests/emulation/*.cpp)
EMULATED_OBJECTS := $(patsubst llmc/%,build/emulated/%.o,$(basename $(COMMON) llmc/cuda/lanes.cu llmc/cuda/memory.cu)) \
                    $(EMULATION:tests/emulation/%.cpp=build/emulated/runtime/%.o) build/emulated/runtime/ops.o
EMULATED_OPS := $(filter-out %/lanes.o %/device.o,$(filter build/cpu/cpu/%,$(CPU_OBJECTS)))

CPU_LIBRARIES := build/libllmc_cpu.so $(if $(HARNESS),build/libllmc_ops_cpu.so) $(if $(EMULATION),build/libllmc_emulated.so)
CUDA_LIBRARIES := build/libllmc_cuda.so $(if $(HARNESS),build/libllmc_ops_cuda.so)

.PHONY: all deps cpu cuda cuda-deps harness test test-deps test-gpu tsan bench clean help print-archs FORCE \
        lint lint-python lint-headers lint-cuda-headers lint-cpu lint-cuda

# -- what people type --------------------------------------------------------------------------------

all: cpu  ## Python packages if missing, the CPU library, the CUDA library when it can be built
	@state=$$($(TOOLCHAIN) cuda-ready) || exit 2; \
	case $$state in \
	yes) $(MAKE) build/libllmc_cuda.so ;; \
	*nvcc\ is\ here*) echo "CPU only: $$state; \"make cuda\" installs it and builds the CUDA library." ;; \
	esac
	@echo "Ready: $(PYTHON) -m pyllmc.train"

deps:  ## Python packages that running needs
	@$(TOOLCHAIN) install base

cpu: deps build/libllmc_cpu.so  ## libllmc_cpu.so

# A second make, because the first read the folders before the packages were in them.
cuda: deps cuda-deps  ## libllmc_cuda.so, with compiler and libraries installed if missing
	@$(MAKE) build/libllmc_cuda.so

cuda-deps: deps
	@$(TOOLCHAIN) install cuda

harness: deps $(filter-out build/libllmc_cpu.so,$(CPU_LIBRARIES))  ## the libraries that tests of single ops and of lanes call
	@if [ "$$($(TOOLCHAIN) cuda-ready)" = yes ]; then $(MAKE) $(CUDA_LIBRARIES); fi

test-deps: deps
	@$(TOOLCHAIN) install test

test: test-deps $(CPU_LIBRARIES)  ## what the tests need, and the tests
	$(Q)$(PYTHON) -m pytest -q $(PYTEST)

# A run in which every test was skipped proved nothing, so it is a failure.
test-gpu: test-deps $(CUDA_LIBRARIES)  ## the tests that need a GPU, the sanitizer's tools, the time of a step
	$(Q)$(PYTHON) -m pytest -q -m gpu --junitxml=build/test-gpu.xml $(PYTEST)
	$(Q)$(PYTHON) tests/lint/all_skipped.py build/test-gpu.xml
	$(Q)$(PYTHON) tests/sanitizer.py
	$(Q)$(PYTHON) -m pyllmc.ab -e d12 --batch 4 -o build/ab-d12-b4.json
	$(Q)$(PYTHON) -m pyllmc.ab -e d12 --batch 64 --steps 10 -o build/ab-d12-b64.json

# The other tests want the libraries without it: the next make builds them again.
tsan: test-deps  ## the lanes' tests under ThreadSanitizer, which sees two threads at one buffer
	$(Q)$(MAKE) build/libllmc_cpu.so build/libllmc_emulated.so CXXFLAGS='-g -fsanitize=thread' LDFLAGS=-fsanitize=thread
	$(Q)LD_PRELOAD=$$($(CXX) -print-file-name=libtsan.so) $(PYTHON) -m pytest -q -s tests/test_lanes.py

# Every check runs even if an earlier one failed, so that one call shows all there is to mend.
lint: test-deps build/libllmc_cpu.so  ## style, headers that compile alone, exports, no print or exit
	@state=$$($(TOOLCHAIN) cuda-ready) || exit 2; [ "$$state" = yes ] || echo "  (CUDA not checked: $$state)"; \
	$(MAKE) --keep-going lint-python lint-headers lint-cpu $$([ "$$state" != yes ] || echo lint-cuda-headers lint-cuda)

lint-python:
	$(call say,LINT,Python)
	$(Q)$(PYTHON) -m ruff check --quiet --output-format concise .
lint-headers: $(HEADERS:%=build/lint/%.ok) build/lint/llmc.c.ok
lint-cuda-headers: $(CUDA_HEADERS:%=build/lint/%.ok)
lint-cpu lint-cuda: lint-%: build/libllmc_%.so
	$(call say,LINT,'$< and its objects')
	$(Q)$(PYTHON) tests/lint/binaries.py exports llmc/llmc.h $<
	$(Q)$(PYTHON) tests/lint/binaries.py objects $(if $(filter cpu,$*),$(CPU_OBJECTS),$(CUDA_OBJECTS))

bench: cpu  ## speed against PyTorch on this machine, which has to be installed
	@$(PYTHON) -c 'import torch' 2>/dev/null || { echo "make bench compares with PyTorch: pip install a build of torch that fits this machine." >&2; exit 2; }
	$(Q)$(PYTHON) -m tests.bench.cpu_vs_torch

clean:  ## all that was built
	rm -rf build

help:
	@awk -F '## ' '/^[a-z-]+:.*## /{split($$1, t, ":"); printf "  make %-10s %s\n", t[1], $$2}' Makefile

print-archs:
	@$(TOOLCHAIN) archs

# -- rules -------------------------------------------------------------------------------------------

# Options live in files that change only when their content does: a new interpreter, compiler, GPU or
# list of sources rebuilds what depends on it, and nothing is rebuilt otherwise.
build/cpu/compile build/cpu/link: build/cpu/%: FORCE | deps
	@$(TOOLCHAIN) write $@ cpu-$* '$(CXXFLAGS) $(LDFLAGS)' $(if $(filter link,$*),$(CPU_OBJECTS) $(CPU_OPS) $(EMULATED_OBJECTS))
build/cuda/host build/cuda/device build/cuda/link: build/cuda/%: FORCE
	@$(TOOLCHAIN) write $@ cuda-$* '$(CXXFLAGS) $(NVCCFLAGS) $(LDFLAGS)' $(if $(filter link,$*),$(CUDA_OBJECTS) $(CUDA_OPS))
# One after the other: what is missing is then said once.
build/cpu/link: | build/cpu/compile
build/cuda/device build/cuda/link: | build/cuda/host

# Nothing but the ABI leaves the library: not C++ templates of the standard library, which two
# libraries in one process would share, nor the CUDA runtime that is linked in.
build/exports.map: Makefile
	@mkdir -p $(@D) && echo '{ global: llmc_*; local: *; };' > $@

build/cpu/%.o: llmc/%.cpp build/cpu/compile
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) -MMD -MP -c $< -o $@
build/cpu/%.o: llmc/%.cu build/cpu/compile
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) -MMD -MP -x c++ -c $< -o $@
build/cpu/ops/%.o: tests/ops/%.cu build/cpu/compile
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) -MMD -MP -x c++ -c $< -o $@

# Lane under another name, so that the CPU's ops stand beside those that enqueue them.
EMULATE := -DLane=StreamLane -Itests/emulation
build/emulated/%.o: llmc/%.cpp build/cpu/compile
	$(call say,C++,'$< (emulated)')
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) $(EMULATE) -MMD -MP -c $< -o $@
build/emulated/%.o: llmc/%.cu build/cpu/compile
	$(call say,C++,'$< (emulated)')
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) $(EMULATE) -MMD -MP -x c++ -c $< -o $@
build/emulated/runtime/%.o: tests/emulation/%.cpp build/cpu/compile
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) $(EMULATE) -MMD -MP -c $< -o $@
build/emulated/runtime/%.o: build/emulated/%.cpp build/cpu/compile
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cpu/compile $(CXXFLAGS) $(EMULATE) -MMD -MP -c $< -o $@
build/emulated/ops.cpp: tests/emulation/wrap_ops.py llmc/ops.h
	@mkdir -p $(@D)
	$(Q)$(PYTHON) $^ > $@

# The frontend's headers cost minutes at -O3, and what they hold runs once, at start-up.
build/cuda/cuda/attention_cudnn.o: CXXFLAGS += -O1
build/cuda/%.o: llmc/%.cpp build/cuda/host
	$(call say,C++,'$< (cuda)')
	@mkdir -p $(@D)
	$(Q)$(CXX) @build/cuda/host $(CXXFLAGS) -MMD -MP -c $< -o $@
build/cuda/%.o: llmc/%.cu build/cuda/device
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC_PATH) --options-file build/cuda/device $(NVCCFLAGS) -ccbin $(CXX) -MMD -MP -c $< -o $@
build/cuda/ops/%.o: tests/ops/%.cu build/cuda/device
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC_PATH) --options-file build/cuda/device $(NVCCFLAGS) -ccbin $(CXX) -MMD -MP -c $< -o $@
NVCC_PATH = $$(sed -n 2p build/cuda/device.from)

build/libllmc_cpu.so: $(CPU_OBJECTS) build/cpu/link build/exports.map
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $(CPU_OBJECTS) -Wl,-soname,$(@F) -Wl,--version-script=build/exports.map @build/cpu/link $(LDFLAGS)
build/libllmc_cuda.so: $(CUDA_OBJECTS) build/cuda/link build/exports.map
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $(CUDA_OBJECTS) -Wl,-soname,$(@F) -Wl,--version-script=build/exports.map @build/cuda/link $(LDFLAGS)
build/libllmc_ops_cpu.so: $(CPU_OPS) build/cpu/link
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $(CPU_OPS) -Wl,-soname,$(@F) @build/cpu/link $(LDFLAGS)
build/libllmc_emulated.so: $(EMULATED_OBJECTS) $(EMULATED_OPS) build/cpu/link tests/emulation/exports.map
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $(EMULATED_OBJECTS) $(EMULATED_OPS) -Wl,-soname,$(@F) -Wl,--version-script=tests/emulation/exports.map @build/cpu/link $(LDFLAGS)
build/libllmc_ops_cuda.so: $(CUDA_OPS) build/cuda/link
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $(CUDA_OPS) -Wl,-soname,$(@F) @build/cuda/link $(LDFLAGS)

# A header that needs another one included first works by luck. The ABI's is C as well.
build/lint/llmc.c.ok: llmc/llmc.h
	@mkdir -p $(@D)
	$(Q)echo '#include "$<"' | $(CXX) -I. -x c -std=c99 -Wall -Wextra -pedantic -fsyntax-only - && touch $@
build/lint/llmc/cuda/%.ok: llmc/cuda/% build/cuda/device
	$(call say,LINT,$<)
	@mkdir -p $(@D) && echo '#include "$<"' > $(@:.ok=.cu)
	$(Q)$(NVCC_PATH) --options-file build/cuda/device -ccbin $(CXX) -MMD -MP -MF $(@:.ok=.d) -MT $@ --cuda $(@:.ok=.cu) -o /dev/null && touch $@
build/lint/%.ok: % build/cpu/compile
	@mkdir -p $(@D)
	$(Q)echo '#include "$<"' | $(CXX) @build/cpu/compile -MMD -MP -MF $(@:.ok=.d) -MT $@ -fsyntax-only -x c++ - && touch $@

-include $(patsubst %.ok,%.d,$(HEADERS:%=build/lint/%.ok) $(CUDA_HEADERS:%=build/lint/%.ok))
-include $(patsubst %.o,%.d,$(sort $(CPU_OBJECTS) $(CPU_OPS) $(EMULATED_OBJECTS) $(CUDA_OBJECTS) $(CUDA_OPS)))
