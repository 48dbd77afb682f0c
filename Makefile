PYTHON ?= python3
BIN := .venv/bin
FAST := not slow and not gpu and not vllm and not ray

FAULT_MINUTES ?= 10
# A file's tests stay together: they share models and runs that are made once.
PARALLEL := --numprocesses logical --maxprocesses 4 --dist loadfile

.PHONY: setup demo test test-twice test-all test-faults lint docs dist clean

setup: .venv/stamp

.venv/stamp: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,train]'
	touch $@

demo: setup
	$(BIN)/dora train demo
	@echo "the command is $(BIN)/dora; for more: $(BIN)/dora --help"

test: setup
	$(BIN)/pytest -x -q $(PARALLEL) -m "$(FAST)"

# Tests of processes and of time share the cores with three others: what fails is named and run once more, by
# itself. What fails twice is broken; so is a run that did not come to its end (any exit but 1).
test-twice: setup
	$(BIN)/pytest -q $(PARALLEL) -m "$(FAST)" || { [ $$? -eq 1 ] && $(BIN)/pytest -v --last-failed --last-failed-no-failures none -m "$(FAST)"; }

# Tests marked gpu, vllm or ray skip themselves where what they need is missing.
test-all: setup
	DORA_HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -q

# Runs struck by FAULT_SIGNALS signals (1000), runs of episodes whose processes are killed FAULT_EPISODE_KILLS
# times (100), then every file of a killed run damaged, one at a time; at most so many minutes of each,
# FAULT_RUNS_AT_ONCE runs side by side (three for four cores). FAULT_SEED has another plan.
test-faults: setup
	FAULT_MINUTES=$(FAULT_MINUTES) $(BIN)/pytest -q -s -m slow tests/run/test_fault_campaign.py tests/run/test_damage_campaign.py

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/dora keys --markdown > docs/reference.md
	$(BIN)/dora keys --peers > docs/coming_from.md

# The wheel and the source archive, built as an index would have them.
dist: setup
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
