# `make help` lists the targets. Each sets up .venv by itself, and does nothing twice.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.PHONY: help train test lint bench faults soak clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.* ## \(.*\)/make \1\t\2/p' Makefile | expand -t 16
	@echo "ARGS='…' is passed on: make train ARGS='--cpus 4', make test ARGS='-k report'"

train: $(READY) ## learn to drive: on all GPUs, or on two CPU ranks; draws demo-out/drive.gif
	$(BIN)/puffrun train $(ARGS)

test: $(READY) ## run the tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY) ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## measure start-up, build contention and the warm check; JSON in bench-results/
	$(BIN)/python tests/bench $(ARGS)

faults: $(READY) ## run the whole fault matrix, with and without --preload
	PUFFRUN_FAULTS=all $(BIN)/python -m pytest tests/faults $(ARGS)

soak: $(READY) ## throw random faults at runs; ARGS='--faults 300 --seed 7'
	$(BIN)/python tests/soak.py $(ARGS)

clean: ## remove everything that the targets made, .venv and the runs as well
	@chmod -R u+w .puffrun 2>/dev/null || true  # artifacts are read-only
	rm -rf .venv .puffrun demo-out bench-results build dist .*_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

# The stamp is the last thing written: what is half set up is set up again.
$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "error: no Python 3.11 or newer was found" >&2; \
		echo "hint: install one, or \`make PYTHON=/path/to/python3.11\`" >&2; exit 2; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11, or does not run" >&2; exit 2; }
	@echo "setting up .venv with $(PYTHON); the download of torch may take minutes" >&2
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv || \
		{ echo "error: $(PYTHON) cannot make a venv" >&2; \
		echo "hint: on Debian and Ubuntu \`apt install python3-venv\`" >&2; exit 2; }
	@$(BIN)/python -c 'import tomllib; group = tomllib.load(open("pyproject.toml", "rb")); \
		print(*group["dependency-groups"]["dev"], sep="\n")' > .venv/dev-requirements.txt
	$(PIP) install -c constraints.txt -r .venv/dev-requirements.txt
	$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@
