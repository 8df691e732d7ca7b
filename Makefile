# make demo   set up what is missing, then run the main job      (JSON=FILE writes its result there)
# make test   the same set-up, then all tests but those on RoCE hosts
# make test-long   those that measure or explore for a minute each, about six minutes together
# make test-loaded   the tests three times, beside compilers that keep every processor busy
# make test-roce   those: what qemu and its image take is set up first (make roce-image: only that)
# make soak   mixed jobs under changing faults for half an hour (SOAK="--minutes 5 --seed 7" changes that)
# make sanitize   tests of the native code under sanitizers (SANITIZE="address tests/host_agent/transport" is one run of some)
# make mutants   change the tables and machines that decide, one thing at a time: who finds it? (ONLY=host_agent/member.py)
# make check  what a contributor runs: format, lint, types, quick tests
# make gloo   PyTorch, whose Gloo 'p4reduce compare' can hold itself against
# make frameworks   Lightning, accelerate, transformers and DeepSpeed, and the tests of their recipes (docs/frameworks.md)
# make pages  build/pages/*.html: the protocol, packet by packet (examples/protocol)
# make dist   dist/*.tar.gz, and dist/*.whl made of it                make setup / make clean
#
# Variables: VENV (.venv), DEMO, TEST, SOAK, SANITIZE and ONLY (options for `p4reduce demo`, pytest, `python -m p4reduce.workloads.soak`,
# `python -m tests.sanitized`, `python -m tests.mutants`).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# Compiled modules are kept: otherwise every process that a test starts, and every run of pytest, makes all of them.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: demo test test-long test-loaded test-roce soak sanitize mutants roce-image roce-system gloo frameworks check pages dist clean setup

VENV ?= .venv
# Tests at once: those of emulated clusters mostly wait.
AT_ONCE := $(shell n=$$(nproc); echo $$(( n < 8 ? 2 * n + 1 : 16 )))
BIN := $(VENV)/bin
STAMPS := $(VENV)/p4reduce-stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

NATIVE := host_agent/_native.so p4reduce/workloads/capture/_player.so soft_switch/_engine.so
NATIVE_SOURCES := $(wildcard host_agent/native/* p4reduce/workloads/capture/native/* soft_switch/native/*) setup.py

# command:package, as Debian and Ubuntu name them
NEEDED := mnexec:mininet ip:iproute2 tc:iproute2 ethtool:ethtool nsenter:util-linux ping:iputils-ping gcc:gcc g++:g++
NEEDED_BY_TESTS := tshark:tshark tcpdump:tcpdump
# Ubuntu has Chromium as a snap only, which containers cannot run: there the test that opens a report skips itself.
ifeq ($(shell . /etc/os-release 2>/dev/null && echo $$ID),debian)
NEEDED_BY_TESTS += chromium:chromium
endif
# PyPI's builds for x86-64 have CUDA in them, those for other processors have not.
TORCH := torch==2.13.0
TORCH_WITHOUT_CUDA := $(TORCH)$(if $(filter x86_64,$(shell uname -m)),+cpu)
NEEDED_BY_ROCE := qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap cpio:cpio ssh:openssh-client
DEBIAN_KEYRING := /usr/share/keyrings/debian-archive-keyring.gpg

demo: $(STAMPS)/native
	@$(BIN)/p4reduce demo $(if $(JSON),--json "$(JSON)") $(DEMO)

test: $(STAMPS)/test $(STAMPS)/native $(STAMPS)/gloo-if-small
	@$(BIN)/python -m pytest -m "not roce and not long" -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder $(TEST)

test-long: $(STAMPS)/test $(STAMPS)/native $(STAMPS)/gloo-if-small
	@$(BIN)/python -m pytest -m "long and not roce" -n 2 --dist loadfile --no-loadscope-reorder $(TEST)

test-loaded: $(STAMPS)/test $(STAMPS)/native $(STAMPS)/gloo-if-small
	@$(BIN)/python -m tests.beside_load --times 3 -m "not roce and not long" -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder $(TEST)

test-roce: roce-image $(STAMPS)/test
	@$(BIN)/python -m pytest -m roce $(TEST)

soak: $(STAMPS)/native
	@$(BIN)/python -m p4reduce.workloads.soak $(if $(JSON),--json "$(JSON)") $(SOAK)

sanitize: $(STAMPS)/test $(STAMPS)/native
	@$(if $(SANITIZE),$(BIN)/python -m tests.sanitized $(SANITIZE),$(BIN)/python -m tests.sanitized address && $(BIN)/python -m tests.sanitized thread)

mutants: $(STAMPS)/test $(STAMPS)/native
	@$(BIN)/python -m tests.mutants $(ONLY)

roce-image: roce-system $(STAMPS)/native
	@$(BIN)/python -m topologies.machines

# No stamp: whoever lacks one of these is sent here, so it looks each time.
roce-system: | $(STAMPS)/system
	@$(call install_missing,$(NEEDED_BY_ROCE),$(if $(wildcard $(DEBIAN_KEYRING)),,debian-archive-keyring))

check: $(STAMPS)/dev $(STAMPS)/native
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy .
	@$(BIN)/python -m pytest -q -m "not emulation and not slow and not long and not roce" --hypothesis-profile=quick -n 3 --dist loadfile $(TEST)

gloo: $(STAMPS)/gloo

frameworks: $(STAMPS)/frameworks $(STAMPS)/native
	@$(BIN)/python -m pytest tests/e2e/test_frameworks.py $(TEST)

pages: $(patsubst examples/protocol/%.json,build/pages/%.html,$(wildcard examples/protocol/*.json))

# Always anew: what a page shows is what the code does.
build/pages/%.html: examples/protocol/%.json FORCE | $(STAMPS)/native
	@mkdir -p $(@D)
	@$(BIN)/p4reduce simulate-faults --replay $< --page $@

FORCE:

dist: $(STAMPS)/run
	@echo "== building the source distribution, and the wheel of it"
	@mkdir -p dist && rm -f dist/*.tar.gz dist/*.whl
	@$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' >/dev/null
	@$(PIP) wheel --no-deps --wheel-dir dist dist/*.tar.gz
	@ls dist/*.tar.gz dist/*.whl

setup: $(STAMPS)/native

clean:
	rm -rf $(VENV) build dist *.egg-info host_agent/*.so soft_switch/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# ---- set-up: each stamp is one step, done once

# Installs the packages of those commands of $(1) that this machine has not, and those of $(2). A fresh machine may be updating
# itself: both steps wait for that, `update` in a loop, as DPkg::Lock::Timeout is nothing to it.
define install_missing
	missing="$(if $(2), $(2))"; \
	for pair in $(1); do \
	    command -v "$${pair%%:*}" >/dev/null || missing+=" $${pair#*:}"; \
	done; \
	if [ -n "$${missing// }" ]; then \
	    echo "== installing with apt-get:$$missing"; \
	    [ "$$(id -u)" = 0 ] || { echo "This needs root: run it again with sudo." >&2; exit 1; }; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    until complaint="$$(LC_ALL=C apt-get -qq update 2>&1)"; do \
	        [[ "$$complaint" == *"Could not get lock"* ]] && (( SECONDS < 600 )) || { echo "$$complaint" >&2; exit 1; }; \
	        sleep 2; \
	    done; \
	    apt-get -qq -y -o DPkg::Lock::Timeout=600 --no-install-recommends install $$missing >/dev/null; \
	fi
endef

# A Python that can do it: the first of these of version 3.10 or later that can make environments.
define find_python
	python=; \
	for candidate in $(PYTHON) python3 python3.12 python3.11 python3.10 /usr/bin/python3; do \
	    if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
	        python="$$candidate"; break; \
	    fi; \
	done
endef

$(STAMPS)/system:
	@$(call install_missing,$(NEEDED))
	@mkdir -p $(@D) && touch $@

$(STAMPS)/system-test: | $(STAMPS)/system
	@$(call install_missing,$(NEEDED_BY_TESTS))
	@touch $@

$(STAMPS)/venv: | $(STAMPS)/system
	@$(find_python); \
	if [ -z "$$python" ]; then $(call install_missing,,python3 python3-venv); fi
	@$(find_python); \
	[ -n "$$python" ] || { echo "There is no Python 3.10 or later here." >&2; exit 1; }; \
	if [ ! -x $(BIN)/python ]; then \
	    echo "== making the virtual environment $(VENV)"; \
	    "$$python" -m venv $(VENV); \
	fi
	@touch $@

$(STAMPS)/run: setup.cfg pyproject.toml | $(STAMPS)/venv
	@echo "== installing p4reduce and what it needs into $(VENV), building its native parts"
	@$(PIP) install --editable '.[all]'
	@touch $@

# p4reduce itself is there. Named like this, not as a directory, it is not built again for what it needs besides.
$(STAMPS)/test: setup.cfg pyproject.toml | $(STAMPS)/run $(STAMPS)/system-test
	@echo "== installing what the tests need into $(VENV)"
	@$(PIP) install 'p4reduce[test]'
	@touch $@

$(STAMPS)/gloo: | $(STAMPS)/run
	@echo "== installing PyTorch into $(VENV) (on x86-64 with gigabytes of CUDA, unless pip knows of a build without)"
	@$(PIP) install $(TORCH)
	@touch $@ $(STAMPS)/gloo-if-small

$(STAMPS)/gloo-if-small: | $(STAMPS)/run
	@echo "== installing PyTorch into $(VENV), if there is a build without CUDA"
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install $(TORCH_WITHOUT_CUDA) 2>/dev/null || \
	    echo "   pip has none: tests with Gloo skip themselves; 'make gloo' installs PyPI's build"
	@touch $@

# After PyTorch, or pip would choose a build of it for what the frameworks need.
$(STAMPS)/frameworks: setup.cfg pyproject.toml | $(STAMPS)/test $(STAMPS)/gloo-if-small
	@echo "== installing Lightning, accelerate, transformers and DeepSpeed into $(VENV)"
	@$(PIP) install 'p4reduce[frameworks]'
	@touch $@

$(STAMPS)/dev: setup.cfg pyproject.toml | $(STAMPS)/test
	@echo "== installing what 'make check' needs into $(VENV)"
	@$(PIP) install 'p4reduce[dev]'
	@touch $@

# Installing has built them too: only what is older than its sources is built again.
$(STAMPS)/native: $(NATIVE_SOURCES) | $(STAMPS)/run
	@for library in $(NATIVE); do \
	    if [ ! -e $$library ] || [ -n "$$(find $(NATIVE_SOURCES) -newer $$library)" ]; then \
	        $(BIN)/python setup.py --quiet build_ext --inplace; break; \
	    fi; \
	done
	@touch $@
