# Each target sets up what it needs. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
# More for pip, for example an index that has torch's CPU build: make figures PIP_FLAGS="--extra-index-url ..."
PIP_FLAGS ?=
JOBS ?= 2
NOTEBOOKS ?=
MODULES ?=

RUN := .venv/bin/python
STAMP := .venv/.stamp
PEERS := .venv-peers/bin/python
PEERS_STAMP := .venv-peers/.stamp

.PHONY: help figures check test notebooks book sweep sweep-check restamp weights evaluate-api lab export reproduce \
  mutate bench bench-peers lock clean

help:
	@echo "make figures    make the tables and figures of the book (figures/)"
	@echo "make check      check what has changed since it last passed"
	@echo "make test       run every check (ARGS='style unit': these steps)"
	@echo "make lab        read the book in JupyterLab"
	@echo "make notebooks  execute the notebooks and store their outputs (NOTEBOOKS=path for some)"
	@echo "make book       make static pages of the notebooks, to read and search in a browser (.site/html)"
	@echo "make sweep      run more seeds of more arms (ARGS='--help' says how)"
	@echo "make sweep-check  make stored runs again and compare (ARGS='--draw 4': four of them)"
	@echo "make restamp ARGS='--why \"...\"'  after a neutral change: make a sample of stored runs again, then move versions"
	@echo "make weights    make the weights that come with the book, where their code has changed"
	@echo "make evaluate-api  let a model behind an API play the gym (ARGS='--help' says how)"
	@echo "make reproduce  train 40 steps with other threads, kernels and samplers, and compare"
	@echo "make mutate     break the core on purpose and see that the unit tests notice (MODULES='ppo credit' for some)"
	@echo "make bench      time a training step against the plain loop and the machine's matrix rate"
	@echo "make bench-peers  time it beside TRL's GRPOTrainer (in an environment of its own)"
	@echo "make export     write agentrl/ from the notebooks"
	@echo "make lock       write requirements.lock from pyproject.toml (ARGS='--upgrade': with the newest versions)"
	@echo "make clean      remove the environment, the caches and trained policies"

define check_python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "Python 3.11 or newer is needed; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
endef

# An environment, $(1), with the versions of requirements.lock. torch comes first and without a hash: its build for the
# processor alone, for example, is not the registry's. All else must have its hash. The last line finds everything there,
# and installs only what a CUDA build of torch asks for beyond the lock.
define install
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.lock)"
$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes --requirement requirements.lock
$(1)/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation --editable .
endef

$(STAMP): pyproject.toml requirements.lock
	$(check_python)
	$(call install,.venv)
	@$(RUN) -m jupyter labextension disable "@jupyterlab/apputils-extension:announcements" >/dev/null 2>&1 || true
	@touch $@

$(PEERS_STAMP): pyproject.toml requirements.lock tools/peers-requirements.txt
	$(check_python)
	$(call install,.venv-peers)
	$(PEERS) -m pip install $(PIP_FLAGS) --requirement tools/peers-requirements.txt
	@touch $@

figures: $(STAMP)
	@$(RUN) -m tools.export
	@$(RUN) -m tools.runs
	@$(RUN) -m tools.execute --figures --jobs $(JOBS)

check: $(STAMP)
	@$(RUN) -m tools.check --changed

test: $(STAMP)
	@$(RUN) -m tools.check $(ARGS)

notebooks: $(STAMP)
	@$(RUN) -m tools.export
	@$(RUN) -m tools.runs
	@$(RUN) -m tools.execute --jobs $(JOBS) $(NOTEBOOKS)

book: $(STAMP)
	@$(RUN) -m tools.book

sweep: $(STAMP)
	@$(RUN) -m tools.sweep $(ARGS)

sweep-check: $(STAMP)
	@$(RUN) -m tools.sweep_check $(ARGS)

restamp: $(STAMP)
	@OMP_NUM_THREADS=1 $(RUN) -m tools.restamp $(ARGS)

weights: $(STAMP)
	@OMP_NUM_THREADS=1 $(RUN) -m tools.weights $(ARGS)

evaluate-api: $(STAMP)
	@$(RUN) -m tools.evaluate_api $(ARGS)

# One thread for each kernel: the matrices are so small that a second one mostly waits.
lab: $(STAMP)
	OMP_NUM_THREADS=1 $(RUN) -m jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start_here/00_0_start_here.ipynb

# Forty steps under each condition that must not matter; prints by how much parameters differ.
reproduce: $(STAMP)
	@$(RUN) -m tools.reproduce

# Mutants of the core's modules whose code or tests have changed; JOBS at a time.
mutate: $(STAMP)
	@$(RUN) -m tools.mutate --jobs $(JOBS) $(ARGS) $(MODULES)

# One training step against the plain loop and the machine's matrix rate; keep the machine quiet.
bench: $(STAMP)
	@$(RUN) -m tools.bench

# The same beside TRL's GRPOTrainer (about 2 GB in .venv-peers); keep the machine quiet.
bench-peers: $(PEERS_STAMP)
	@OMP_NUM_THREADS=1 $(PEERS) -m tools.bench_peers

export: $(STAMP)
	@$(RUN) -m tools.export

# One lock for every system and every Python, made by uv in an environment that is thrown away. A version stays unless
# pyproject.toml asks for another one, or ARGS does: "--upgrade", or "--upgrade-package numpy".
lock:
	$(check_python)
	@folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && $(PYTHON) -m venv $$folder && \
	  $$folder/bin/python -m pip install --quiet uv && \
	  $$folder/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	    --annotation-style line --custom-compile-command "make lock" --quiet --output-file requirements.lock $(ARGS)

clean:
	rm -rf .venv .venv-peers .cache .site .pytest_cache .hypothesis .ruff_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
