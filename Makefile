# Everything below sets itself up: a virtual environment in .venv with what pyproject.toml names.

PYTHON ?= python3
VENV := .venv
# Many tests wait for a disk or for a process of theirs, so more of them than there are cores.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
# The long forms compute most of the time. Without capture, the workers show their progress.
SOAKERS ?= 2
BIN := $(VENV)/bin
AXE := 4.14
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test test-postgres test-pythons lint types unit browser screenshots docs bench bench-peers soak clean help

help:            ## what there is to make
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/'

demo: $(VENV)/user.stamp  ## see it work, and break it, in about a minute
	$(BIN)/keyrun demo

test: lint types unit  ## lint, strict type check, tests with coverage

lint: $(VENV)/dev.stamp  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp  ## mypy, strict
	$(BIN)/mypy keyrun benchmarks tests examples website

unit: $(VENV)/dev.stamp  ## tests with coverage
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --cov --cov-report term $(TESTS)

browser: build/browser/node_modules/axe-core/axe.min.js  ## Chromium and axe-core, for the tests of the web page
	@command -v chromium > /dev/null || { command -v apt-get > /dev/null && $(AS_ROOT) apt-get update -q && \
		$(AS_ROOT) apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core; } || \
		{ echo "Install Chromium as /usr/bin/chromium: the tests of the web page require it."; exit 1; }

build/browser/node_modules/axe-core/axe.min.js: Makefile
	npm install --silent --no-save --no-audit --no-fund --prefix build/browser axe-core@$(AXE)
	touch $@

screenshots: $(VENV)/dev.stamp  ## every screen of the web page, into build/screenshots
	$(BIN)/python -m tests.page.screenshots $(SCREENS)

test-pythons: $(VENV)/dev.stamp  ## the tests of the hosts, on every Python that Keyrun supports
	$(BIN)/python -m tests.hosting.pythons

# With KEYRUN_TEST_POSTGRES=URL the tests use that database.
test-postgres: $(VENV)/dev.stamp  ## the tests of the runtime, on a store in PostgreSQL
	KEYRUN_TEST_STORE=postgres $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal tests/runtime tests/storage/postgres

docs: $(VENV)/dev.stamp  ## the reference, and the documentation site in build/site/index.html
	$(BIN)/python -m website.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file website/mkdocs.yml

bench: $(VENV)/bench.stamp  ## every benchmark, with ratios to a limit measured in the same run
	$(BIN)/python -m benchmarks $(BENCH)

bench-peers: $(VENV)/user.stamp  ## Keyrun beside DBOS, Restate, LangGraph and others, and the page that shows it
	$(BIN)/python -m benchmarks.peers $(PEERS)

soak: $(VENV)/dev.stamp  ## the long forms of the randomized tests, in two processes, for over an hour
	KEYRUN_SOAK=1 $(BIN)/python -m pytest --capture=no --numprocesses $(SOAKERS) --dist worksteal --durations 10 $(TESTS)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Keyrun needs Python 3.11 or newer; try: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/user.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[control]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/user.stamp

$(VENV)/bench.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	touch $@ $(VENV)/user.stamp

clean:           ## remove everything that make made
	rm -rf $(VENV) $(VENV)-3.* build .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
