# What a contributor and CI call. Each target sets up .venv first, which costs nothing when nothing changed.
.DEFAULT_GOAL := help
.PHONY: help setup setup-demo fmt check test test-docker chaos fuzz demo bench clean dist
BIN := .venv/bin
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FUZZ_EXAMPLES ?= 20000
TEST_PROCESSES ?= 2
FUZZED := $(addprefix tests/property/test_,sender_lane.py protocol_splice.py protocol_fuzz.py \
	control_plane_model.py)

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## .venv with everything (uv where present, else venv and pip)
	@bash scripts/setup.sh dev

setup-demo:
	@bash scripts/setup.sh demo

fmt: setup  ## format, and fix what lint can fix
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

check: setup  ## lint, types, layering, spelling
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

test: setup  ## every test, on real brokers, two files at a time; PYTEST_ARGS="-k name" narrows it
	$(BIN)/pytest -q -m "not chaos" -n $(TEST_PROCESSES) --dist loadfile $(PYTEST_ARGS)

test-docker: setup  ## the image's steps in a clean environment; the compose file where a container engine runs
	MM2PY_TEST_DOCKER=1 $(BIN)/pytest -q -rs tests/docker $(PYTEST_ARGS)

chaos: setup  ## faults for minutes (CONTRIBUTING.md, Faults); PYTEST_ARGS="-k wan" narrows it
	$(BIN)/pytest -q -m chaos --log-cli-level=WARNING tests/chaos $(PYTEST_ARGS)

fuzz: setup  ## sender, splice, codecs and control plane with FUZZ_EXAMPLES=20000 random examples each
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest -q --timeout=0 $(FUZZED) $(PYTEST_ARGS)

demo: setup-demo  ## two regions mirror each other; DEMO_SECONDS=20: unattended, with proof; WORKERS=3 share the work
	@$(BIN)/mm2py demo $(if $(WORKERS),--workers $(WORKERS)) $(DEMO_ARGS)

bench: setup  ## the Java MirrorMaker 2 and mm2py on the same brokers, ratios printed
	$(BIN)/python -m bench.run $(BENCH_ARGS)

dist: setup  ## wheel and sdist in dist/
	$(BIN)/hatchling build

clean:  ## remove .venv and everything built; the user's jar cache stays
	rm -rf .venv .mm2py dist build .*_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
