# Everything a developer or a pipeline calls. `make help` lists it.
# Needs: make, Python 3.11 or newer with its venv module. Nothing else is installed outside of .venv and .cache.

PYTHON      ?= python3
VENV        ?= .venv
SHARED_CASES ?= ../shared/cases
# Options of the targets: make run ARGS="--config config/minimal.yaml", make test ARGS="-k reload", make cases CASES="--group smuggling -j 2"
ARGS        ?=
CASES       ?=

BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip -qq --disable-pip-version-check
CASES_VENV  := .cache/cases-venv

.DEFAULT_GOAL := help
.PHONY: help run test check format lint types imports image-lint cases cases-venv bench bench-micro soak trouble install install-dev clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: install ## install what is missing and start the gateway (options: ARGS="…")
	@exec $(BIN)/egressproxy run $(ARGS)

test: install-dev ## run the whole test suite (options: ARGS="…")
	@$(BIN)/python -m pytest $(ARGS)

check: lint types imports image-lint test ## format, lint, types, import direction, image files, then the tests

format: install-dev ## rewrite the files as `check` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: install-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: install-dev
	@$(BIN)/mypy

imports: install-dev
	@$(BIN)/lint-imports

image-lint: install-dev
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint --config docker/hadolint.yaml docker/Dockerfile && echo "docker/Dockerfile: no findings"; \
	else echo "hadolint is not available for this machine: docker/Dockerfile is not checked"; fi

cases: install ## run the attack cases that stand beside the checkout (options: CASES="--group smuggling -j 2")
	@if [ ! -f $(SHARED_CASES)/run_cases.py ]; then \
	  echo "There are no attack cases at $(SHARED_CASES). Put the folder there, or name it: make cases SHARED_CASES=/path/to/cases"; exit 2; fi
	@$(MAKE) --no-print-directory cases-venv
	@$(CASES_VENV)/bin/python $(SHARED_CASES)/run_cases.py --target egressproxy \
	  --command '$(abspath $(BIN))/egressproxy run --config {config} --admin 127.0.0.1:{admin}' $(CASES)

cases-venv: $(CASES_VENV)/.installed

bench: install-dev ## compare with other proxies found on this machine (options: ARGS="…")
	@$(BIN)/python -m benchmarks $(ARGS)

soak: install-dev ## ten minutes of every fault, and whether anything grows (options: ARGS="--minutes 2")
	@$(BIN)/python -m benchmarks.soak $(ARGS)

trouble: install-dev ## memory and latency under trouble, each with its goal (options: ARGS="readers chunks")
	@$(BIN)/python -m benchmarks.trouble $(ARGS)

bench-micro: install-dev ## what each stage of a request costs (options: ARGS="…")
	@$(BIN)/python -m benchmarks.micro $(ARGS)

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

clean: ## remove everything that these targets made
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "egressproxy needs Python 3.11 or newer; $(PYTHON) is not. Name another: make PYTHON=python3.11 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }

# An editable install: a change in the sources needs no new one, a change of the dependencies does.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing egressproxy into $(VENV) …"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing egressproxy and its test tools into $(VENV) …"
	@$(PIP) install --editable '.[dev,clients]'
	@touch $(VENV)/.installed $@

$(CASES_VENV)/.installed: $(SHARED_CASES)/requirements.txt
	@mkdir -p .cache
	@$(PYTHON) -m venv $(CASES_VENV)
	@$(CASES_VENV)/bin/python -m pip -qq --disable-pip-version-check install -r $<
	@touch $@
