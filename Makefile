# Two commands on a fresh machine: `make tune` runs the main job, `make test` passes the tests.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Tests of one process each; the others start ranks, browsers and services, and want both cores.
ALONGSIDE := tests/architecture tests/flow tests/unit

.PHONY: setup tune test screenshots soak test-long check format clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[service,worker,dev]'
	# Its configuration parser is a test's; what else it needs (datasets, tensorboard) is not.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torchtitan
	touch $@

tune: setup
	$(BIN)/shardtune tune examples/llama-tiny.json

test: setup
	./tests/setup-machine.sh
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ALONGSIDE) $(PYTEST_ARGS)
	$(BIN)/python -m pytest $(foreach folder,$(ALONGSIDE),--ignore=$(folder)) $(PYTEST_ARGS)

screenshots: setup
	./tests/setup-machine.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.screenshots screenshots

# Ten minutes of random kills; needs PostgreSQL's programs.
soak: setup
	./tests/setup-machine.sh
	$(BIN)/python -m benchmarks.service.soak --minutes 10

test-long: soak
	SHARDTUNE_TEST_LONG=1 $(BIN)/python -m pytest --timeout=3600 tests/flow/leasing/test_any_order.py \
		tests/flow/http/test_fuzz.py tests/flow/leasing/test_crash_points.py \
		tests/endtoend/test_live_retune.py tests/endtoend/test_fingerprint_change.py $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest tests/architecture/test_house.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv best .shardtune
