# Everything sets itself up in .venv from a bare clone: Python, make and the package index are enough.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 2
TORCH ?= 2.4.1
.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-gpu test-torch test-nightly transform-table mutants lint types build docs benchmark benchmark-gpu chart estimates probe-overhead check clean

help: ## the commands of this file
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing torch and the development tools: gigabytes the first time, for minutes."
	$(BIN)/python -m pip install --editable '.[dev]'
	@touch $(READY)

demo: $(READY) ## a slow training script: the diff, the proof, and what each change buys on this machine
	$(BIN)/python -m benchmarks.demo

test: $(READY) ## the test suite without its slow part
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu" -n $(WORKERS) --dist worksteal -q

test-all: $(READY) ## every test that does not need a GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" -n $(WORKERS) --dist worksteal -q

test-gpu: $(READY) ## the tests that need a GPU (minutes)
	$(BIN)/python -m pytest -m gpu -q

test-torch: ## the runs under verification with another PyTorch: TORCH=2.4.1, the oldest (ten minutes)
	$(PYTHON) -m venv .venv-$(TORCH)
	.venv-$(TORCH)/bin/python -m pip install --quiet --editable . "torch==$(TORCH)" torchvision pytest pytest-xdist hypothesis jsonschema
	OMP_NUM_THREADS=1 .venv-$(TORCH)/bin/python -m pytest tests/optimizer tests/corpus -m "torch and not slow and not gpu" -n $(WORKERS) -q

test-nightly: $(READY) ## every test, thousands of generated scripts, the corpus rewritten and verified (hours)
	TORCHOPT_NIGHTLY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" -n $(WORKERS) --dist worksteal -q

transform-table: $(READY) ## the transforms' tests, and a table of their cases and the corpus scripts they fire on
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/transforms -m "not gpu" -n $(WORKERS) -q --transform-table

mutants: $(READY) ## who checks the checker: caught / mutants, false alarms / controls, three seeds (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.verification.score --seeds 0 1 2 --jobs $(WORKERS)

lint: $(READY) ## ruff, and the formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## strict type check
	$(BIN)/basedpyright

build: $(READY) ## the wheel and the source distribution
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

docs: $(READY) ## write docs/transforms and the JSON schema again from the code
	$(BIN)/python -m torchopt_cli.optimizer.documentation docs/transforms
	$(BIN)/python -m torchopt_cli.optimizer.json_schema docs/verify-report.schema.json

benchmark: $(READY) ## every corpus script: original, rewritten, expert; prints the table, writes JSON, chart and README
	$(BIN)/python -m benchmarks.corpus
	$(BIN)/python -m benchmarks.chart

benchmark-gpu: $(READY) ## on a GPU: its tests, the corpus, the estimates; MINUTES=9 ends in time and goes on the next time
	$(BIN)/python -m benchmarks.gpu $(if $(MINUTES),--minutes $(MINUTES))

chart: $(READY) ## draw the chart and the README's table again from the committed results
	$(BIN)/python -m benchmarks.corpus --table
	$(BIN)/python -m benchmarks.chart

estimates: $(READY) ## what profile says each transform could save, beside what it saved (an hour)
	$(BIN)/python -m benchmarks.estimates

probe-overhead: $(READY) ## what the timing probe adds to a training step
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.probe_overhead

check: lint types test build ## what CI runs

clean: ## remove what make made
	rm -rf .venv .venv-* build dist *.egg-info .demo
