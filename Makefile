# Targets for developers and CI. Everything runs in .venv; `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most test jobs have two processes. Tests of one file run on one worker, since they share recordings.
WORKERS := $(shell n=$$(nproc); echo $$((n < 4 ? 2 : n / 2)))
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-all known compat lint types docs docs-check docs-site wheel clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY) ## Train two workers with a planted fault, record them, find the fault, write the report.
	$(BIN)/esprof demo --force $(ARGS)

test: $(READY) ## Run the tests required before a commit; those of the report need Chromium.
	$(PYTEST) -m "(promise or not (integration or slow)) and not soak" $(ARGS)

test-all: $(READY) ## Run all other tests, with all examples of property tests; test bed hosts need root.
	$(PYTEST) -m "(integration or slow or thorough) and not (promise or soak)" --hypothesis-profile thorough $(ARGS)

known: $(READY) ## Compare what-ifs with simulated jobs; ARGS="--programs 60 --seed 1".
	$(BIN)/python -m benchmarks.known $(ARGS)

compat: $(READY) ## Run the tests for every supported torch; VERSIONS="2.6.0 2.15.0@python3.13" (gigabytes each).
	$(BIN)/python -m benchmarks.compatibility $(VERSIONS) $(ARGS)

lint: $(READY) ## Check style, format, spelling and words.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m docs.words

types: $(READY) ## Check types and the direction of imports.
	$(BIN)/mypy -p esprof
	$(BIN)/lint-imports

docs: $(READY) ## Write the pages of docs/ that are generated from the code.
	$(BIN)/python -m docs.generate

docs-check: $(READY) ## Fail where the generated docs differ from the code.
	$(BIN)/python -m docs.generate --check

docs-site: $(READY) ## Build the documentation into site/; fail at a dead link.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# setuptools would include files of an earlier build in build/.
wheel: $(READY) ## Build the wheel into dist/.
	rm -rf build
	$(BIN)/pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

clean: ## Remove all generated files, including .venv.
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without build isolation, constraints.txt applies to the build as well.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt setuptools
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[torch,dev]"
	touch $@
