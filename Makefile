# Braid's front door. `make demo` and `make test` install what is missing, build and run.
SHELL  := /bin/bash
BUILD  ?= build
WERROR ?=# 1: warnings are errors, 0: they are not; empty: as $(BUILD) was made before
JOBS   ?= $(shell nproc)
CMAKE_FLAGS ?=

PREFIX ?= /usr/local

.PHONY: all deps tools packages build install demo test check bench docs soak format clean

all: build

deps:
	@bash deploy/install-deps.sh

build: deps
	@cmake -S . -B $(BUILD) -G Ninja $(if $(WERROR),-DBRAID_WERROR=$(if $(filter 1,$(WERROR)),ON,OFF)) $(CMAKE_FLAGS) >$(BUILD).cmake.log 2>&1 || (cat $(BUILD).cmake.log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)

# Binaries, libbraid.so, braid.h and their pkg-config and CMake files.
install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

test: build
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# Two workers and two servers on generated data, in a few minutes; ends with a RESULT line.
demo: build
	@$(BUILD)/bin/braid run examples/demo.yaml --workers 2 --servers 2

# Samples/s of the DLRM job and where its time goes; bench/README.md says what is measured.
bench: build
	@bash bench/dlrm.sh $(BUILD)

# Debian packages in $(BUILD)/packages, the same bytes for the same commit.
packages: build
	@cd $(BUILD) && SOURCE_DATE_EPOCH=$$(git -C .. log -1 --format=%ct 2>/dev/null || echo 0) cpack -G DEB -B packages | grep generated

# What the tests of deploy/ use (helm, promtool, schemas); without it they say SKIP.
tools:
	@bash tests/deploy/install-tools.sh $(BUILD)

# docs/JOBS.md from the worker's option table, docs/OPTIMIZERS.md from the tables in base/num, manual
# pages and shell completion from the tables of options and commands (tests/integ/test_docs.sh,
# test_cli.sh and tests/unit/test_num_docs.c check that they are fresh).
docs: build
	@sed -i '/^<!-- options -->$$/q' docs/JOBS.md
	@$(BUILD)/bin/braid-worker --print-options markdown >>docs/JOBS.md
	@$(BUILD)/bin/test_num_docs --print >docs/OPTIMIZERS.md
	@$(BUILD)/bin/braid __man >docs/man/braid.1
	@$(BUILD)/bin/braid-worker --print-options man >docs/man/braid-worker.1
	@$(BUILD)/bin/braid-ps --print-options man >docs/man/braid-ps.8
	@$(BUILD)/bin/braid completion bash >deploy/completion/braid.bash
	@$(BUILD)/bin/braid completion zsh >deploy/completion/_braid
	@$(BUILD)/bin/braid completion fish >deploy/completion/braid.fish

# clang-tidy, sanitizers, fuzzing: tests/README.md says what is in it. About 15 minutes on 2 cores.
check: build
	@BUILD=$(BUILD) JOBS=$(JOBS) bash tests/check.sh

# Hundreds of kills and hours of bad network (SOAK_ROUNDS, SEED): tests/soak.sh.
soak: build
	@bash tests/soak.sh $(BUILD)

format:
	@. tests/lint/lib.sh; $$(llvm_tool clang-format) -i $$(git ls-files '*.c' '*.h' '*.cu')

clean:
	@rm -rf $(BUILD) $(BUILD).cmake.log
