# Thin front door; CMakePresets.json has the real switches. `make help` lists the targets.
JOBS ?= $(shell nproc)
MODEL ?= models/kadence-tiny
KADENCE = build/release/kadence
NVCC := $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)

.PHONY: help build demo test check bench format lint faults install clean bootstrap release

help:  ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

bootstrap:
	@tools/bootstrap.sh

release: bootstrap
	@cmake --preset release >build-release.log 2>&1 || { cat build-release.log; exit 1; }
	@rm -f build-release.log
	@cmake --build --preset release -j $(JOBS)

build: release  ## install what is missing, build build/release/kadence

demo: release  ## check a small model end to end, then a chat whose second turn hits the cache
	@tools/demo.sh $(KADENCE) $(MODEL)

test:  ## build and run every test that needs no GPU
	@tools/bootstrap.sh tests
	@tools/run_tests.sh $(JOBS)

check: release  ## the long checks: exactness on contexts up to 72,000 tokens, Hugging Face goldens
	$(KADENCE) check all --model models/kadence-tiny
	$(KADENCE) check golden --model models/random-kimi

bench: release  ## operator timings, time over floor
	$(KADENCE) bench ops

format: bootstrap  ## clang-format every source file
	@tools/format.sh --write

lint: bootstrap  ## formatting of all files, clang-tidy on the changed ones
	@tools/format.sh --check
	@tools/tidy.sh

faults: bootstrap  ## plant every known fault in a copy and see its test go red
	@python3 tests/faults/plant.py --all --jobs $(JOBS)

PREFIX ?= /usr/local
install: release  ## install library, headers and binary under PREFIX (default /usr/local)
	@cmake --install build/release --prefix $(PREFIX)

clean:  ## remove the build tree
	rm -rf build
