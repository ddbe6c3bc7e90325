# make run needs Python 3.11 or newer, and nothing else. `make help` lists the rest.

UPSTREAM ?= https://api.openai.com
LISTEN   ?= 127.0.0.1:8080
VENV     ?= .venv
# Workers of the parallel part of `make test`.
JOBS     ?= 2

# The first Python on the path that is new enough.
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(python) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(python))))

BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# RUNLEVEL=1: Debian's packages install their services without starting them.
APT := DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get
CAN_APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null

# What the tests run beside the proxy: program:package.
TOOLS := redis-server:redis-server nginx:nginx npm:npm systemd-analyze:systemd chromium:chromium chromedriver:chromium-driver
MOCK  := tests/node_modules/.bin/llmock

.PHONY: help run demo test lint format bench bench-quick soak suites clean
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-12s %s\n", $$1, $$2 }'

run: $(VENV)/.installed ## the proxy on LISTEN (127.0.0.1:8080) in front of UPSTREAM (https://api.openai.com)
	$(BIN)/soloflight serve --listen $(LISTEN) --upstream $(UPSTREAM)

demo: $(VENV)/.installed ## 50 identical streaming clients, one upstream call; needs no key
	$(BIN)/soloflight demo

# Three passes. What starts no real processes runs on both cores, whole files per worker so that a file's fixtures
# are built once, and is measured. Real processes (`system`) are not: a tracer would slow down what stands around
# them. Those that bound no time closely (`beside`) bear company and run on both cores, too. The others run alone:
# a neighbour would be a part of what they measure.
test: lint $(VENV)/.tools $(MOCK) ## everything that must hold before a change goes in
	$(PYTEST) -n $(JOBS) --dist loadfile -m "not system and not bench and not soak" --cov --cov-report=
	$(BIN)/coverage report
	$(BIN)/coverage report --include='proxy/soloflight/core/*,proxy/soloflight/config/*' --fail-under=100
	$(PYTEST) -n $(JOBS) --dist loadfile -m "system and beside and not bench and not soak"
	$(PYTEST) -m "system and not beside and not bench and not soak"

lint: $(VENV)/.installed-test ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-test ## let ruff lay out the code
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(VENV)/.installed-test $(VENV)/.tools ## the long comparison
	BENCH=full $(PYTEST) -m bench -s --timeout=0 tests/bench

bench-quick: $(VENV)/.installed-test $(VENV)/.tools ## the same ratios in under three minutes
	BENCH=quick $(PYTEST) -m bench -s --timeout=180 tests/bench

soak: $(VENV)/.installed-test $(VENV)/.tools $(MOCK) ## hours of load and deep exploration
	$(PYTEST) -m soak -s --timeout=0

suites: $(VENV)/.installed-test $(VENV)/.tools ## the coordinators' conformance suites alone
	$(PYTEST) -v tests/conformance

clean: ## all that was installed, built or measured here
	rm -rf $(VENV) tests/node_modules build dist *.egg-info .coverage .coverage.* htmlcov \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find proxy plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Below: what is made once. A stamp stands for it, and is older than what it depends on when that changed.

$(VENV)/.made:
	@[ -n "$(PYTHON)" ] || { echo "soloflight needs Python 3.11 or newer; none is on the path (or: make PYTHON=…)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		if $(CAN_APT); then $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$package; \
		else echo "$(PYTHON) can not make environments here. On Debian or Ubuntu: sudo apt-get install $$package" >&2; exit 2; fi; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made setup.cfg pyproject.toml proxy/soloflight/__init__.py
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.made setup.cfg pyproject.toml proxy/soloflight/__init__.py
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@ $(VENV)/.installed

# Debian keeps nginx in /usr/sbin, which is not on everyone's path.
$(VENV)/.tools: $(VENV)/.made
	@missing=; \
	for tool in $(TOOLS); do \
		PATH=$$PATH:/usr/sbin command -v $${tool%%:*} >/dev/null || missing="$$missing $${tool##*:}"; \
	done; \
	if [ -z "$$missing" ]; then true; \
	elif $(CAN_APT); then $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing; \
	else echo "The tests need these, please install:$$missing" >&2; exit 2; fi
	@touch $@

$(MOCK): tests/package.json $(VENV)/.tools
	npm install --prefix tests --no-package-lock --omit=peer --no-audit --no-fund --loglevel=error
	@touch $@
