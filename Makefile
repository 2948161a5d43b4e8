# make run: set up and run the smoke experiment. make test: set up and run every check.
# make study: the settling experiment, hours; again, it goes on. make study-quick: a part, minutes.
# make golden: write the resolved configs that tests/config/test_golden.py compares with.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

.PHONY: run study study-quick test env lint golden clean
.DELETE_ON_ERROR:

run: $(VENV)/.ready
	$(BIN)/glm52 train experiment=smoke

study: $(VENV)/.ready
	$(BIN)/glm52 study $(STUDY)

study-quick: $(VENV)/.ready
	$(BIN)/glm52 study --quick $(STUDY)

test: $(VENV)/.ready-dev lint
	@scripts/tests.sh $(BIN)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

env: $(VENV)/.ready

golden: $(VENV)/.ready
	$(BIN)/python tests/golden/refresh.py

$(VENV)/.ready: pyproject.toml requirements/constraints.txt requirements/sglang-nodeps.txt
	@scripts/system_packages.sh bubblewrap=bwrap git=git
	@command -v $(PYTHON) >/dev/null || { echo "make needs $(PYTHON); install it, or name it: make PYTHON=..." >&2; exit 2; }
	@echo "Making the environment in $(VENV) (about 2 GB, a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c requirements/constraints.txt torch -e '.[engine]'
	$(PIP) install --no-deps -r requirements/sglang-nodeps.txt
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@scripts/system_packages.sh chromium=chromium slurm-wlm=slurmctld
	$(PIP) install -c requirements/constraints.txt -e '.[engine,dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
