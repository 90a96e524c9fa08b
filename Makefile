# One target for each thing that a person or CI does here. Everything happens in .venv; `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most jobs of tests have two processes. Tests of one file run on one worker, for they share what it recorded.
WORKERS := $(shell n=$$(nproc); echo $$((n < 4 ? 2 : n / 2)))
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-all known compat lint types docs docs-check docs-site wheel clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY) ## Train two workers with a planted fault, record them, find the fault, write the report.
	$(BIN)/esprof demo --force $(ARGS)

test: $(READY) ## Run what is to pass before a commit; the report in a browser needs Chromium.
	$(PYTEST) -m "(promise or not (integration or slow)) and not soak" $(ARGS)

test-all: $(READY) ## Run everything else, with all examples of properties; hosts of the test bed need root.
	$(PYTEST) -m "(integration or slow or thorough) and not (promise or soak)" --hypothesis-profile thorough $(ARGS)

known: $(READY) ## Judge what-ifs by jobs whose truth is simulated; ARGS="--programs 60 --seed 1".
	$(BIN)/python -m benchmarks.known $(ARGS)

compat: $(READY) ## Run what every supported torch must pass; VERSIONS="2.6.0 2.15.0@python3.13" (gigabytes each).
	$(BIN)/python -m benchmarks.compatibility $(VERSIONS) $(ARGS)

lint: $(READY) ## Check style, format, spelling and words.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m docs.words

types: $(READY) ## Check types and the direction of imports.
	$(BIN)/mypy -p esprof
	$(BIN)/lint-imports

docs: $(READY) ## Write the pages of docs/ that are made from the code.
	$(BIN)/python -m docs.generate

docs-check: $(READY) ## Fail where the generated docs differ from the code.
	$(BIN)/python -m docs.generate --check

docs-site: $(READY) ## Build the documentation into site/; fail at a dead link.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# setuptools would put what an earlier build left in build/ into the wheel.
wheel: $(READY) ## Build the wheel into dist/.
	rm -rf build
	$(BIN)/pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

clean: ## Remove all that was made here, .venv too.
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without build isolation the build itself obeys constraints.txt.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt setuptools
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[torch,dev]"
	touch $@
