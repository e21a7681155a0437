# Everything runs in .venv, which is made when first needed. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install -q

.DEFAULT_GOAL := help
.PHONY: help demo test test-soak bench-search bench-ingest lint format build install clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.demo ## Start a server, ingest and search; DOCS=folder takes your own documents
	$(BIN)/pg-knowledge demo $(if $(DOCS),--docs "$(DOCS)")

test: .venv/.test ## Run the tests; ARGS=... goes to pytest
	$(BIN)/pytest $(ARGS)

test-soak: .venv/.test ## Run the tests that take minutes
	$(BIN)/pytest -m soak $(ARGS)

bench-search: .venv/.bench ## Measure search against its peers; ARGS="--rows 20000 --only shares" for less
	$(BIN)/python tests/bench/search.py $(ARGS)

bench-ingest: .venv/.bench ## Measure ingest against its peers; ARGS="--rows 2000 --only reingest" for less
	$(BIN)/python tests/bench/ingest.py $(ARGS)

lint: .venv/.lint ## Check the Python, the SQL, and that migrations/ is what sql/ builds
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python sql/lint.py
	$(BIN)/sqlfluff lint sql
	$(BIN)/python sql/build.py --check
	$(BIN)/squawk migrations/pg_knowledge--*.sql

format: .venv/.lint ## Format the Python; fix what can be fixed in Python and SQL
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/sqlfluff fix sql

build: .venv/.build ## Build migrations/ from sql/, then the wheel and the sdist in dist/
	$(BIN)/python sql/build.py
	$(BIN)/python -m build -q

install: .venv/.base ## Apply the migration to the database of DATABASE_URL
	@test -n "$$DATABASE_URL" || { echo 'make install: set DATABASE_URL=postgresql://...' >&2; exit 2; }
	$(BIN)/pg-knowledge migrate

clean: ## Remove .venv, dist and caches
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find python sql tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is a set of packages in .venv, installed again when pyproject.toml changes.

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.base: pyproject.toml | .venv/bin/python
	$(PIP) -e .
	@touch $@

.venv/.demo: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[files,local,server]'
	@touch $@

.venv/.test: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[test]'
	@touch $@

.venv/.bench: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[bench]'
	@touch $@

.venv/.lint: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[lint]'
	@touch $@

.venv/.build: pyproject.toml | .venv/bin/python
	$(PIP) build
	@touch $@
