# sessiond: `make serve` and `make test` work from a bare checkout with Python 3.11, gcc, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: serve test test-isa check bench soak fuzz sanitize clean

serve: $(VENV)/.installed
	@$(BIN)/sessiond serve $(ARGS)

test: $(VENV)/.installed-dev
	@$(BIN)/sessiond model pull
	$(BIN)/python -m pytest $(ARGS)

# the suite as on machines without AVX-512, and without any vector instructions; tests/kernels
# holds each kernel on each set anyway
test-isa: $(VENV)/.installed-dev
	@$(BIN)/sessiond model pull
	SESSIOND_CPU_ISA=avx2 $(BIN)/python -m pytest --ignore=tests/kernels $(ARGS)
	SESSIOND_CPU_ISA=portable $(BIN)/python -m pytest --ignore=tests/kernels $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/docs
	@$(BIN)/python -m tests.audit

bench: $(VENV)/.installed-dev
	@$(BIN)/sessiond model pull
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.installed-dev
	@$(BIN)/sessiond model pull
	SESSIOND_SOAK=1 $(BIN)/python -m pytest -m soak $(ARGS)

# readers of foreign bytes, guided by coverage where atheris has a wheel
fuzz: $(VENV)/.installed-dev
	@$(PIP) --editable '.[dev,fuzz]' || echo "atheris can't be installed here: inputs are mutated at random"
	$(BIN)/python -m tests.fuzz $(ARGS)

sanitize: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/kernels/test_sanitizers.py $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info

# the C libraries are compiled by the install
$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(wildcard engine/model/kernels/*.[ch] engine/memory/*.c)
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Adding the development tools (once) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@
