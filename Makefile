# Each target sets up what it needs. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
# More for pip, for example an index that has torch's CPU build: make figures PIP_FLAGS="--extra-index-url ..."
PIP_FLAGS ?=
JOBS ?= 2
NOTEBOOKS ?=

RUN := .venv/bin/python
STAMP := .venv/.stamp

.PHONY: help figures test notebooks lab export reproduce bench clean

help:
	@echo "make figures    make the tables and figures of the book (figures/)"
	@echo "make test       run every check"
	@echo "make lab        read the book in JupyterLab"
	@echo "make notebooks  execute the notebooks and store their outputs (NOTEBOOKS=path for some)"
	@echo "make reproduce  train 40 steps with other threads, kernels and samplers, and compare"
	@echo "make bench      time a training step against the plain loop and the machine's matrix rate"
	@echo "make export     write agentrl/ from the notebooks"
	@echo "make clean      remove the environment, the caches and trained policies"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install $(PIP_FLAGS) --editable '.[dev]'
	@$(RUN) -m jupyter labextension disable "@jupyterlab/apputils-extension:announcements" >/dev/null 2>&1 || true
	@touch $@

figures: $(STAMP)
	@$(RUN) -m tools.export
	@$(RUN) -m tools.warm
	@$(RUN) -m tools.runs
	@$(RUN) -m tools.execute --figures --jobs $(JOBS)

test: $(STAMP)
	@$(RUN) -m tools.check

notebooks: $(STAMP)
	@$(RUN) -m tools.export
	@$(RUN) -m tools.warm
	@$(RUN) -m tools.runs
	@$(RUN) -m tools.execute --jobs $(JOBS) $(NOTEBOOKS)

lab: $(STAMP)
	$(RUN) -m jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start_here/00_1_tour.ipynb

# Forty steps under each condition that must not matter; prints by how much parameters differ.
reproduce: $(STAMP)
	@$(RUN) -m tools.reproduce

# One training step against the plain loop and the machine's matrix rate; keep the machine quiet.
bench: $(STAMP)
	@$(RUN) -m tools.bench

export: $(STAMP)
	@$(RUN) -m tools.export

clean:
	rm -rf .venv .cache .pytest_cache .hypothesis .ruff_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
