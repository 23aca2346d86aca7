# Everything needs only python3 (3.11 or newer) with venv and pip, and make. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODEL := .models/smollm2-135m-instruct
EMBEDDING_MODEL := .models/all-minilm-l6-v2
CROSS_ENCODER := .models/random-cross-encoder
AIRFLOW := .airflow/venv
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test test-fast test-airflow test-browser test-alerts soak fuzz scale bench bench-start bench-quick bench-steps bench-peers bench-replicas bench-simulation lock sample-data schema clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) $(MODEL)/config.json $(EMBEDDING_MODEL)/config.json ## Make .venv and the demo model folders; quick when they are there

# torch comes first and alone: the CPU build has its own index, and an index that cannot be reached would cost seconds for each
# package of the list. --no-deps because the list is complete: pip must not add what the list leaves out on purpose.
$(READY): requirements/cpu.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps '$(TORCH)' \
	  || $(BIN)/python -m pip install --quiet --no-deps '$(TORCH)' --index-url $(TORCH_INDEX)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

$(MODEL)/config.json: scripts/get_demo_model.py | $(READY)
	$(BIN)/python scripts/get_demo_model.py $(MODEL)

$(EMBEDDING_MODEL)/config.json: scripts/get_embedding_model.py | $(READY)
	$(BIN)/python scripts/get_embedding_model.py $(EMBEDDING_MODEL)

$(CROSS_ENCODER)/config.json: scripts/make_random_cross_encoder.py | $(EMBEDDING_MODEL)/config.json
	$(BIN)/python scripts/make_random_cross_encoder.py $(EMBEDDING_MODEL) $(CROSS_ENCODER)

demo: setup ## Run jobs/summarize.yaml on sample_data/ with vLLM and the demo model; show the summary and a few answers
	$(BIN)/bulkinfer run jobs/summarize.yaml
	$(BIN)/bulkinfer query jobs/summarize.yaml \
	  "select document_id, output from answers order by row limit 4"

check: $(READY) ## Lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup $(CROSS_ENCODER)/config.json ## Every test, the real engine included
	$(BIN)/python -m pytest

test-fast: $(READY) ## The tests that need no vLLM
	$(BIN)/python -m pytest -m "not engine"

test-airflow: $(READY) $(AIRFLOW)/.ready ## Run jobs/airflow_dag.py under Apache Airflow, in an environment of its own
	$(BIN)/python -m pytest -m airflow tests/airflow

$(AIRFLOW)/.ready: requirements/airflow.txt
	$(PYTHON) -m venv $(AIRFLOW)
	$(AIRFLOW)/bin/python -m pip install --quiet --no-deps -r requirements/airflow.txt
	touch $@

# Chromium is a program of the system: apt installs it where it is missing.
test-browser: $(READY) ## Look at reports in a real Chromium without a window; installs it with apt where it is missing
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || { \
	  echo "installing chromium with apt"; \
	  if [ "$$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi; \
	  $$as_root apt-get update -qq && $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	} || { echo "test-browser needs Chromium, and apt could not install it: install chromium by hand" >&2; exit 1; }
	$(BIN)/python -m pytest -m browser tests/browser

# promtool is one program without needs of its own: it is taken out of Debian's package, and no server is installed.
test-alerts: $(READY) ## Try the alert rules with promtool; fetches it with apt where it is missing
	@command -v promtool >/dev/null || test -x .promtool/usr/bin/promtool || { \
	  echo "fetching promtool with apt"; \
	  mkdir -p .promtool && cd .promtool && { apt-get download -qq prometheus 2>/dev/null \
	    || { if [ "$$(id -u)" = 0 ]; then apt-get update -qq; else sudo apt-get update -qq; fi && apt-get download -qq prometheus; }; } \
	  && dpkg -x prometheus_*.deb . ; \
	} || { echo "test-alerts needs promtool, and apt could not fetch it: install prometheus by hand" >&2; exit 1; }
	PATH="$$PATH:$(CURDIR)/.promtool/usr/bin" $(BIN)/python -m pytest tests/unit/test_grafana.py

soak: setup ## Kill runs hundreds of times, a quarter of an hour; SEED=, KILLS=, ENGINE=both|simulated|vllm
	$(BIN)/python -m tests.crash.soak $(if $(SEED),--seed $(SEED)) $(if $(KILLS),--kills $(KILLS)) $(if $(ENGINE),--engine $(ENGINE))

DOCUMENTS ?= 1000000
scale: $(READY) ## Memory, commits and file of DOCUMENTS documents through an engine that costs nothing; into out/scale
	$(BIN)/python -m benchmarks.scale --documents $(DOCUMENTS) --to out/scale

FUZZ_EXAMPLES ?= 2000
fuzz: $(READY) ## Throw new random job files, rows and command lines at it, FUZZ_EXAMPLES of each; about half an hour
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest --timeout 36000 tests/cli/test_fuzz.py

bench: setup ## Measure bulkinfer beside its peers, half an hour; write docs/performance.md; BENCH=, say, '--resume'
	$(BIN)/python -m benchmarks $(BENCH)

bench-start: setup ## From the start of a process to the first answer on disk, five times, one minute; BENCH=--simulated: without vLLM
	$(BIN)/python -m benchmarks.start $(BENCH)

bench-quick: setup ## The same with few documents and two peers, four minutes; writes no page
	$(BIN)/python -m benchmarks --quick $(BENCH)

bench-steps: setup ## What each step is worth: the engine with and without it, a quarter of an hour
	$(BIN)/python -m benchmarks.simulated_order
	$(BIN)/python -m benchmarks.steps $(BENCH)

bench-simulation: setup ## How far the simulated engine is off once it is fitted to the real one, two minutes; BENCH=
	$(BIN)/python -m benchmarks.simulation $(BENCH)

bench-replicas: $(READY) ## 1,000 simulated engines: where the one runner saturates, ten minutes; BENCH=--vllm: two real ones against one
	$(BIN)/python -m benchmarks.replicas $(BENCH)

bench-peers: setup .bench/ray/.ready .bench/datatrove/.ready ## Peers that need an environment of their own
	$(BIN)/python -m benchmarks --peers bulkinfer llm-chat ray-data datatrove --only reference --rounds 2 --noise-pairs 0 --place peers $(BENCH)

# torch and vLLM come from .venv through a .pth file: nothing big is installed twice.
.bench/%/.ready: requirements/bench-%.txt | $(READY)
	$(BIN)/python -m venv .bench/$*
	.bench/$*/bin/python -m pip install --quiet --no-deps -r requirements/bench-$*.txt
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.bench/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	.bench/$*/bin/python benchmarks/peers/name_vllm.py
	touch $@

lock: $(READY) ## Renew the lists in requirements/
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml requirements/torch.in --extra cpu --extra demo --extra dev --extra otel \
	  --override requirements/left-out.txt --universal --python-version 3.11 --upgrade \
	  --custom-compile-command 'make lock' --output-file requirements/cpu.txt
	$(BIN)/uv pip compile requirements/airflow.in --universal --python-version 3.11 --upgrade \
	  --custom-compile-command 'make lock' --output-file requirements/airflow.txt

sample-data: $(READY) ## Make sample_data/ again (the same every time)
	$(BIN)/python scripts/make_sample_data.py

schema: $(READY) ## Renew docs/job.schema.json, and the reference in docs/jobs.md
	$(BIN)/bulkinfer schema > docs/job.schema.json
	$(BIN)/python scripts/make_job_reference.py

clean: ## Remove what runs and builds left behind, not .venv, .airflow or the model
	rm -rf out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
