# sessiond: `make serve` and `make test` work from a bare checkout with Python 3.11, gcc, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
EXTRA := build/extra

.PHONY: help serve test test-all test-extra test-extra-js test-extra-agents test-isa test-wheel check fix bench \
	soak fuzz sanitize clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

serve: $(VENV)/.installed  ## install if need be, and serve the default model on 127.0.0.1:8080
	@$(BIN)/sessiond serve $(ARGS)

test: $(VENV)/.installed-dev  ## the first ring of tests, some minutes; ARGS="tests/cli -x" narrows it down
	@$(BIN)/sessiond model pull
	$(BIN)/python -m tests first $(ARGS)

test-all: $(VENV)/.installed-dev  ## the second ring: whole servers, kills, soaks, all instruction sets
	@$(BIN)/sessiond model pull
	$(BIN)/python -m tests second $(ARGS)

test-extra: test-extra-js test-extra-agents  ## foreign stacks, each in an environment of its own

test-extra-js: $(VENV)/.installed-dev  ## the npm client `openai`
	@$(BIN)/sessiond model pull
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
	  mkdir -p $(EXTRA)/js && cp constraints/js/*.json tests/e2e/chat.mjs $(EXTRA)/js && \
	  cd $(EXTRA)/js && npm ci --no-audit --no-fund --loglevel=error; \
	else echo "SKIPPED: node and npm are missing, so the JavaScript client is not tested"; fi
	$(BIN)/python -m pytest --ring extra -m "extra(stack='js')" $(ARGS)

test-extra-agents: $(VENV)/.installed-dev  ## OpenAI's Agents SDK
	@$(BIN)/sessiond model pull
	@test -x $(EXTRA)/agents/bin/python || $(PYTHON) -m venv $(EXTRA)/agents
	@$(EXTRA)/agents/bin/pip install --quiet --disable-pip-version-check \
	  --requirement constraints/openai-agents.txt
	$(BIN)/python -m pytest --ring extra -m "extra(stack='agents')" $(ARGS)

# as on machines without AVX-512, and without any vector instructions: what runs the kernels
KERNEL_TESTS := tests/kernels tests/laws tests/model tests/e2e/test_smoke.py
test-isa: $(VENV)/.installed-dev  ## tests that use the kernels, as on processors without AVX-512 and AVX2
	@$(BIN)/sessiond model pull
	SESSIOND_CPU_ISA=avx2 $(BIN)/python -m tests first $(KERNEL_TESTS) $(ARGS)
	SESSIOND_CPU_ISA=portable $(BIN)/python -m tests first $(KERNEL_TESTS) $(ARGS)

check: $(VENV)/.installed-dev  ## formatting, lint, types, import contracts, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --ring first tests/docs
	@$(BIN)/python -m tests.audit

fix: $(VENV)/.installed-dev  ## format, and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev  ## this server beside llama.cpp and vLLM, as ratios
	@$(BIN)/sessiond model pull
	$(BIN)/python -m benchmarks $(ARGS)

# what the build makes, installed and used in a folder without code
test-wheel: $(VENV)/.installed-dev  ## build the package, install it away from the checkout, serve a chat
	@$(BIN)/sessiond model pull
	$(BIN)/python -m tests.wheel

soak: $(VENV)/.installed-dev  ## nightly counts: soaks, kills, chaos, fuzzing, laws
	@$(BIN)/sessiond model pull
	SESSIOND_SOAK=1 $(BIN)/python -m pytest -m soak $(ARGS)

# guided by coverage where atheris has a wheel
fuzz: $(VENV)/.installed-dev  ## readers of foreign bytes
	@$(PIP) --editable '.[dev,fuzz]' || echo "atheris can't be installed here: inputs are mutated at random"
	$(BIN)/python -m tests.fuzz $(ARGS)

sanitize: $(VENV)/.installed-dev  ## the C code under address and undefined-behaviour sanitizers
	$(BIN)/python -m pytest tests/kernels/test_sanitizers.py $(ARGS)

clean:  ## delete the environment and what was built
	rm -rf $(VENV) build *.egg-info

# the C libraries are compiled by the install
$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(wildcard engine/model/kernels/*.[ch] engine/kv/*.c)
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Adding the development tools (once) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@
