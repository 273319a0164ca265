# What a contributor and CI call. Each target sets up .venv first, which costs nothing when nothing changed.
.DEFAULT_GOAL := help
.PHONY: help setup setup-demo fmt check check-mypy check-pyright test test-faults test-hostile test-all test-docker chaos fuzz fuzz-kernel demo bench bench-spark clean dist dist-spark
BIN := .venv/bin
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FUZZ_EXAMPLES ?= 5000
TEST_PROCESSES ?= 4
FAULT_PROCESSES ?= 4
QUARTER ?=
# At most eight failed tests are repeated alone; those that pass then are named as flaky.
LANE = $(BIN)/pytest -q --dist loadfile --no-loadscope-reorder --repeats 8

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## .venv with everything (uv where present, else venv and pip)
	@bash scripts/setup.sh dev

setup-demo:
	@bash scripts/setup.sh $(if $(BACKFILL),dev,demo)

fmt: setup  ## format, and fix what lint can fix
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

check: setup  ## lint, types, layering, spelling
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@# The two type checkers side by side: each has a core.
	@$(MAKE) --no-print-directory -j2 --output-sync=target check-mypy check-pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

check-mypy: setup
	$(BIN)/mypy

check-pyright: setup
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

test: setup  ## tests on real brokers, four files at a time; PYTEST_ARGS="-k name" narrows it
	$(LANE) -m "not chaos and not faults" -n $(TEST_PROCESSES) $(PYTEST_ARGS)

test-faults: setup  ## what kills, freezes, proves scale, or compares with Java a second time; QUARTER=0 to 3: one quarter of the files
	$(LANE) -m "faults and not chaos" -n $(FAULT_PROCESSES) $(if $(QUARTER),--quarter $(QUARTER)) $(PYTEST_ARGS)

test-hostile: setup  ## unit tests where signals, locale, terminal, HOME and the checkout's path are as bad as they come
	bash scripts/hostile.sh $(BIN)/pytest -q -n logical --repeats 8 tests/unit $(PYTEST_ARGS)

test-all: check test test-faults test-hostile  ## everything but chaos, fuzz and containers

test-docker: setup  ## the image's steps in a clean environment; image, clusters and compose file where a container engine runs
	MM2PY_TEST_DOCKER=1 $(BIN)/pytest -q -rfE tests/docker $(PYTEST_ARGS)

chaos: setup  ## faults for minutes (CONTRIBUTING.md, Faults); PYTEST_ARGS="-k wan" narrows it
	$(BIN)/pytest -q -m chaos --log-cli-level=WARNING tests/chaos tests/spark tests/integration $(PYTEST_ARGS)

fuzz: setup  ## everything that is random, with fresh examples: FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) of each property
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest -q --timeout=0 -m "fuzz or hypothesis" -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

fuzz-kernel: setup  ## the C kernel under AddressSanitizer and UndefinedBehaviorSanitizer, FUZZ_EXAMPLES of each property
	LD_PRELOAD=$$($(BIN)/python -m tests.sanitized_kernel) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) \
	  $(BIN)/python -m pytest -p tests.sanitized_kernel -q --timeout=0 tests/property/test_protocol_kernel.py tests/property/test_protocol_columns.py tests/unit/protocol/test_splice.py tests/unit/protocol/test_batch_stage.py $(PYTEST_ARGS)

demo: setup-demo  ## two regions mirror each other; DEMO_SECONDS=20: unattended, with proof; WORKERS=3 share the work; BACKFILL=1: and Spark copies history
	@$(BIN)/python -m examples.demo $(if $(WORKERS),--workers $(WORKERS)) $(if $(BACKFILL),--backfill) $(DEMO_ARGS)

bench: setup  ## the Java MirrorMaker 2 and mm2py on the same brokers, ratios printed
	$(BIN)/python -m bench.run $(BENCH_ARGS)

bench-spark: setup  ## backfill, verify, archive beside Spark's Kafka connector and confluent-kafka in Spark tasks
	$(BIN)/python -m bench.spark_run $(BENCH_ARGS)

dist: setup  ## sdist, a wheel with the C kernel for this Python and platform, and the pure wheel, in dist/
	$(BIN)/hatchling build
	MM2PY_NATIVE=0 $(BIN)/hatchling build -t wheel

dist-spark: setup  ## dist/mm2py-spark.tar.gz for spark-submit --archives: mm2py where Spark runs tasks
	$(BIN)/python -m scripts.spark_archive

clean:  ## remove .venv and everything built; the user's jar cache stays
	rm -rf .venv .mm2py dist build .*_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
