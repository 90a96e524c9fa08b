# One target for each thing that a person or CI does here. Everything happens in .venv; `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test known compat lint types docs docs-check wheel clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY) ## Train two workers with a planted fault, record them, find the fault, write the report.
	$(BIN)/esprof demo --force $(ARGS)

test: $(READY) ## Run the tests, two at a time; those in a browser need Chromium.
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not soak" $(ARGS)

known: $(READY) ## Judge what-ifs by jobs whose truth is simulated; ARGS="--programs 60 --seed 1".
	$(BIN)/python -m benchmarks.known $(ARGS)

compat: $(READY) ## Run what every supported torch must pass; VERSIONS="2.6.0 2.15.0@python3.13" (gigabytes each).
	$(BIN)/python -m benchmarks.compatibility $(VERSIONS) $(ARGS)

lint: $(READY) ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types and the direction of imports.
	$(BIN)/mypy -p esprof
	$(BIN)/lint-imports

docs: $(READY) ## Write commands.md, findings.md, what-ifs.md and the knobs of verify.md in docs/ from the code.
	$(BIN)/python docs/generate.py

docs-check: $(READY) ## Fail where the generated docs differ from the code.
	$(BIN)/python docs/generate.py --check

# setuptools would put what an earlier build left in build/ into the wheel.
wheel: $(READY) ## Build the wheel into dist/.
	rm -rf build
	$(BIN)/pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

clean: ## Remove all that was made here, .venv too.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without build isolation the build itself obeys constraints.txt.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt setuptools
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[torch,dev]"
	touch $@
