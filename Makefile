# Each target does its own set-up and can be the first command on a fresh machine. `make` alone lists them.
# ARGS reaches the program: make train ARGS="training.epochs=3", make test-fast ARGS="-k settings -x".

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/installed
TYPED := $(if $(wildcard bench/*.py),bench) pipeline tests
# What needs neither a GPU nor Docker.
HERE := not gpu and not e2e and not e2e_long
COMPILE = .tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(UPGRADE)

.PHONY: help install train test test-fast test-e2e test-all test-gpu lint format lock render bench clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
	  printf '  make %-10s %s\n' "$$name" "$$what"; done

install: $(INSTALLED) ## .venv with everything, from the lock files

# The stamp lies inside .venv, so an unchanged lock is not installed twice and a deleted .venv is made again.
$(INSTALLED): requirements/dev.lock requirements/tools.lock pyproject.toml scripts/install.sh
	@scripts/install.sh

train: $(INSTALLED) ## fine-tune the default job (configs/banking77.yaml) on this machine
	@$(BIN)/pipeline train -c configs/banking77.yaml $(ARGS)

test: lint ## what CI runs: checks, then unit, gloo, S3 and local Ray tests, and the core of the kind suite
	$(BIN)/pytest tests/unit tests/bad_inputs tests/gloo tests/s3 tests/ray -m "$(HERE) and not slow" $(ARGS)
	$(BIN)/pytest tests/e2e -m e2e $(ARGS)

test-fast: $(INSTALLED) ## unit tests, bad input, both data engines on a local Ray
	$(BIN)/pytest tests/unit tests/bad_inputs tests/ray/test_data_cells.py -m "$(HERE) and not slow" $(ARGS)

test-e2e: $(INSTALLED) ## the core of the kind suite; needs Docker
	$(BIN)/pytest tests/e2e -m e2e $(ARGS)

test-all: test ## and all strategies, killed runs, the kind suite and its long fault cases; says what it could not run
	$(BIN)/pytest tests/gloo tests/s3 tests/ray -m slow -rs $(ARGS)
	$(BIN)/pytest tests/e2e -m e2e_long -rs $(ARGS)

test-gpu: $(INSTALLED) ## on a machine with an NVIDIA GPU
	@nvidia-smi --list-gpus || echo "these tests need an NVIDIA GPU with its driver (nvidia-smi), which this machine lacks"
	$(BIN)/pytest tests -m gpu $(ARGS)

lint: $(INSTALLED) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)

format: $(INSTALLED) ## rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

lock: ## requirements/*.lock again; UPGRADE=--upgrade takes newer versions
	@scripts/install.sh tools
	$(COMPILE) requirements/tools.in -o requirements/tools.lock
	$(COMPILE) pyproject.toml --extra demo --extra deepspeed --extra kube --extra dev -o requirements/dev.lock
	$(COMPILE) pyproject.toml --extra deepspeed -c requirements/dev.lock -o requirements/deepspeed.lock
	$(COMPILE) pyproject.toml --extra demo -c requirements/dev.lock -o requirements/demo.lock
	$(COMPILE) pyproject.toml -c requirements/dev.lock -o requirements/runtime.lock
	$(COMPILE) requirements/old-ray.in --override <(echo 'torch; python_version < "3"') -o requirements/old-ray.lock

render: $(INSTALLED) ## files that are generated: docs/configuration.md, manifests/*.yaml
	$(BIN)/python -m pipeline.reference > docs/configuration.md
	$(BIN)/python manifests/render.py

bench: $(INSTALLED) ## both engines against a bare loop; writes bench/results.json
	@$(BIN)/python -m bench $(ARGS)

clean: ## environments, caches, build output and what the kind suite has built; not runs
	python3 -m tests.e2e.clean
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/pipeline/old-ray"
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
