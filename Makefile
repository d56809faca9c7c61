# Only Python 3.11 or newer and make are assumed; everything else is installed into .venv.
# PYTHON=... chooses the interpreter, JOBS=... the number of test processes.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Hundreds of tests start perdure in a process of its own: each would compile the source anew without its bytecode.
unexport PYTHONDONTWRITEBYTECODE

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .venv-peers
JOBS   ?= 4
PYTHON ?=

PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-input
CAMPAIGN    := $(BIN)/python -m tests.campaigns.crash.campaign

# Shell: sets $$python to the first interpreter that is new enough and can make environments.
define find_python
python=; \
for candidate in $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14); do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    python=$$candidate; break; \
  fi; \
done; \
if [ -z "$$python" ]; then \
  echo "perdure needs Python 3.11 or newer with venv and ensurepip (Debian: python3-venv)." >&2; \
  echo "Found: $$(python3 --version 2>&1). Install one, or name it: make setup PYTHON=python3.11" >&2; \
  exit 1; \
fi
endef

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(STAMP) ## create .venv with pinned dependencies and perdure itself

$(STAMP): pyproject.toml hatch_build.py src/perdure/stores/sqlite/own_locks.c requirements/runtime.txt requirements/servers.txt requirements/agent.txt requirements/fleet.txt requirements/console.txt requirements/dev.txt src/perdure/_version.py
	@$(find_python); echo "setup: $$("$$python" --version) in $(VENV)"; "$$python" -m venv --clear $(VENV)
	@$(BIN)/python $(PIP_INSTALL) --no-deps -r requirements/dev.txt
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check --disable-pip-version-check
	@touch $@

.PHONY: check lint types imports doctest
check: lint types imports doctest ## style, types, import rules and the examples in docstrings

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/basedpyright --pythonpath $(BIN)/python

imports: $(STAMP)
	$(BIN)/lint-imports --no-logo

# pytest answers 5 when it finds no example at all; that is no failure here.
doctest: $(STAMP)
	$(BIN)/python -m pytest -q --doctest-modules src || test $$? -eq 5

.PHONY: format
format: $(STAMP) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Neighbours stay in one process, so that what a module shares is started once; whoever is done helps the others. Two
# processes for each of two cores, because many tests wait for workers and servers.
.PHONY: test
test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests

.PHONY: screenshots
screenshots: $(STAMP) ## take the pictures of the console's pages that the docs show
	PERDURE_SCREENSHOTS=1 $(BIN)/python -m pytest -q tests/server/browser/test_console_looks.py -k fit_to_be_seen

.PHONY: console-speed
console-speed: $(STAMP) ## measure the console on a store with very much in it
	$(BIN)/python -m pytest -q -s tests/server/browser/test_console_large.py

.PHONY: demo
demo: $(STAMP) ## a night of 847 conversations while their workers are killed
	$(BIN)/perdure demo

.PHONY: bench
bench: $(STAMP) ## measure the kernel, as JSON
	@$(BIN)/perdure bench kernel --json

.PHONY: crash crash-servers powerloss tamper model ambiguous race foreign interrupts
crash: $(STAMP) ## long run: kill -9 at random moments
	$(CAMPAIGN) kill

crash-servers: $(STAMP) ## long run: kill -9 of clients and of servers
	$(CAMPAIGN) servers --report

ambiguous: $(STAMP) ## long run: lose answers of servers
	$(BIN)/python -m tests.campaigns.lost_answers.campaign --report

race: $(STAMP) ## long run: ten writers on one session
	$(BIN)/python -m tests.campaigns.race.campaign --report

foreign: $(STAMP) ## long run: others open, copy, remove and replace a SQLite file while it is written
	$(BIN)/python -m tests.campaigns.foreign.campaign --report

interrupts: $(STAMP) ## long run: Ctrl-C at random moments
	$(BIN)/python -m tests.campaigns.interrupts.campaign --report

powerloss: $(STAMP) ## long run: lose what was not synced
	$(CAMPAIGN) powerloss

model: $(STAMP) ## long run: random histories against the model
	PERDURE_MODEL_EXAMPLES=600 PERDURE_MODEL_STEPS=60 $(BIN)/python -m pytest -n $(JOBS) tests/campaigns/model

tamper: $(STAMP) ## long run: change stored bytes
	$(BIN)/python -m tests.campaigns.tamper.campaign --report

.PHONY: effects messages said-once resume client compactor statements
effects: $(STAMP) ## long run: kill agents at every boundary of their loop
	$(BIN)/python -m tests.campaigns.agent_kills.campaign --report

messages: $(STAMP) ## long run: two messages at the same instant
	$(BIN)/python -m tests.campaigns.two_messages.campaign --report

said-once: $(STAMP) ## long run: callers that repeat themselves, compete and are killed
	$(BIN)/python -m tests.campaigns.said_once.campaign --report

statements: $(STAMP) ## long run: hold what people are told against what then happens
	$(BIN)/python -m tests.campaigns.statements.campaign --report

resume: $(STAMP) ## long run: resume against restart
	$(BIN)/python -m tests.campaigns.resume_or_restart.campaign --report

client: $(STAMP) ## long run: a model server that breaks, kills, readers elsewhere
	$(BIN)/python -m tests.campaigns.model_server.campaign --report

compactor: $(STAMP) ## long run: a session of a thousand answers
	$(BIN)/python -m tests.campaigns.long_conversation.campaign --report

.PHONY: scale throughput chaos fleet-proofs
scale: $(STAMP) ## long run: 50,000 sessions on workers that are killed
	$(BIN)/python -m tests.campaigns.fleet_scale.campaign --report

throughput: $(STAMP) ## long run: steps per second of a fleet
	$(BIN)/python -m tests.campaigns.fleet_throughput.campaign --report

chaos: $(STAMP) ## long run: a fleet whose workers, servers, disk and clocks fail
	$(BIN)/python -m tests.campaigns.fleet_chaos.campaign --report

fleet-proofs: $(STAMP) ## long run: a rolling deploy under load, a tool that computes for 90 s
	$(BIN)/python -m tests.campaigns.rolling_deploy.campaign --report

.PHONY: sabotage walks
sabotage: $(STAMP) ## long run: plant faults one at a time, and see which tests notice
	$(BIN)/python -m tests.campaigns.sabotage

walks: $(STAMP) ## count the files behind a commit, an opening and a message
	$(BIN)/python -m tests.campaigns.walks

.PHONY: peers
peers: $(PEERS)/.installed ## install the systems that benchmarks compare with

$(PEERS)/.installed: requirements/peers.txt
	@$(find_python); echo "peers: $$("$$python" --version) in $(PEERS)"; "$$python" -m venv --clear $(PEERS)
	@$(PEERS)/bin/python $(PIP_INSTALL) --no-deps -r requirements/peers.txt
	@$(PEERS)/bin/python -m pip check --disable-pip-version-check
	@touch $@

.PHONY: clean
clean: ## remove everything that was made
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
