# The two commands of the README are `make demo` and `make test`; each does its own set-up.
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_FLAGS ?=
KAFKA_FLAGS ?=
PYTEST_FLAGS ?=
STRESS_FLAGS ?=
BENCH_FLAGS ?=
CHECK_RUN := .data/bench-check.json
RUN ?=

.PHONY: help setup demo kafka test test-kafka stress lint types format bench bench-check docs lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
	@printf '%s\n' '' 'For example:' \
	  '  make setup PYTHON=python3.12 VENV=.venv312' \
	  '  make demo REUSE_TORCH=1 PYTHON=/path/to/python    # builds on its packages' \
	  '  make demo DEMO_FLAGS="--users=40 --keep"' \
	  '  make kafka KAFKA_FLAGS="--port 19092"' \
	  '  make test PYTEST_FLAGS="-k wire -x"' \
	  '  make stress STRESS_FLAGS=--kills=200' \
	  '  make bench BENCH_FLAGS="--models qwen3-0.6b"      # recallstream bench --help' \
	  '  make bench-check RUN=run.json                     # else a new run'

$(READY): requirements.lock requirements-movielens.lock pyproject.toml deploy/setup.sh
	VENV=$(VENV) bash deploy/setup.sh

setup: $(READY) ## a virtual environment with everything in it

demo: $(READY) ## real histories through a broker, a model and a live catalog
	$(BIN)/recallstream demo $(DEMO_FLAGS)

kafka: $(READY) ## a real Apache Kafka on 127.0.0.1:9092 (JDK 17, Maven) until Ctrl-C
	$(BIN)/python -m deploy.kafka $(KAFKA_FLAGS)

test: $(READY) ## every test that needs neither a GPU nor a network
	VENV=$(VENV) bash deploy/setup-browser.sh
	$(BIN)/python -m pytest -m "not gpu and not kafka and not stress" $(PYTEST_FLAGS)

test-kafka: $(READY) ## the delivery contract on a real Apache Kafka (JDK 17, Maven)
	$(BIN)/python -m deploy.kafka.install
	$(BIN)/python -m pytest tests/kafka -m "kafka and not stress" $(PYTEST_FLAGS)

stress: $(READY) ## kills members under load on a real Apache Kafka, checks the topics; takes Redis away; fuzzes the reader
	$(BIN)/python -m deploy.kafka.install
	$(BIN)/python -m pytest tests/kafka tests/catalog_sync tests/consumer/test_serving_fuzz.py -m stress -rP $(PYTEST_FLAGS) $(STRESS_FLAGS)

lint: $(READY) ## ruff, rules and format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(READY) ## mypy --strict
	$(BIN)/python -m mypy

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(READY) ## write the generated pages of docs/ anew
	$(BIN)/python -m benchmarks.plots
	$(BIN)/python -m docs.generate

bench: $(READY) ## measure the engine on this device beside its floors and rivals
	$(BIN)/recallstream bench offline $(BENCH_FLAGS)

bench-check: $(READY) ## name what got over 5 % slower than the committed results
	$(if $(RUN),,$(BIN)/recallstream bench offline --no-flattened --no-transformers --no-ablate --out $(CHECK_RUN) $(BENCH_FLAGS))
	$(BIN)/python -m benchmarks.check $(or $(RUN),$(CHECK_RUN))

lock: $(READY) ## resolve the dependencies anew
	$(BIN)/pip install -q uv
	(echo "# Every dependency, extras included, pinned with hashes. Made by: make lock"; \
	 $(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	   --no-emit-index-url --no-header --no-annotate -q) > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
