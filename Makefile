# Every target sets up .venv from the pinned requirements by itself.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
RUNTIME := .venv/.runtime
DEV := .venv/.dev

.PHONY: help demo test unit test-engines record-engine lint compile goldens bench fuzz lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(RUNTIME): requirements.txt requirements-local.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Tuneline needs Python 3.11 or newer; set PYTHON=/path/to/it"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-local.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): $(RUNTIME) requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

demo: $(RUNTIME) ## compile, run the compiled pipeline on this computer, say where the results lie
	$(BIN)/python compile.py
	$(BIN)/tuneline run --recipe local-tiny

test: $(DEV) ## every test but those with the engines' own packages
	$(BIN)/python -m pytest tests --ignore=tests/engines

unit: $(DEV) ## the fast tests
	$(BIN)/python -m pytest tests/unit tests/contract

test-engines: $(DEV) ## our jobs under verl's and NeMo RL's own code (installs verl into .engines/; NEMO_RL_SRC names copies of NeMo RL)
	$(BIN)/python -m pytest tests/engines

record-engine: $(DEV) ## record the settings of a version: VERSION=verl-0.9.1, or VERSION=nemo_rl-v0.5.0 with NEMO_RL_SRC
	@test -n "$(VERSION)" || { echo "make record-engine VERSION=verl-0.9.1"; exit 1; }
	VERSION=$(VERSION) $(BIN)/python -m tests.engines.packages

lint: $(DEV) ## ruff, mypy, layers
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compile: $(RUNTIME) ## pipelines x recipes -> compiled/
	$(BIN)/python compile.py

goldens: $(DEV) ## write the golden files anew; read the difference before you commit it
	$(BIN)/python compile.py
	$(BIN)/python -m pytest tests/golden --update-goldens

fuzz: $(DEV) ## convert 20,000 mutated checkpoints
	@folder=$$(mktemp -d) && $(BIN)/python tests/unit/checkpoints/make_checkpoints.py $$folder && \
	PYTHONPATH=. $(BIN)/python tests/fuzz_checkpoints.py $$folder 20000; status=$$?; rm -rf $$folder; exit $$status

bench: $(RUNTIME) ## measure, in ratios within one run
	for script in bench/*.py; do $(BIN)/python "$$script" || exit 1; done

lock: ## resolve requirements*.in anew (needs uv)
	uv pip compile --universal --python-version 3.11 --quiet --no-header --no-annotate requirements.in -o requirements.txt

clean: ## remove what was built, not the store
	rm -rf .venv build *.egg-info
