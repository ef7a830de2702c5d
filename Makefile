# Everything a person types. Set-up runs by itself, and what is set up already takes a second to check.

PYTHON ?= python3
WEB := .venv/bin/python
export DJANGO_SETTINGS_MODULE := clawplatform.settings

.DEFAULT_GOAL := help
.PHONY: help setup run demo stop test check fmt bench-gateway bench-recorder bench-pool bench-console bench-trainer bench-learning doctor clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup:  ## install everything: two Python environments, the browser library, the default model
	@$(PYTHON) setup/bootstrap.py all

run:  ## set up, start the whole platform and stay; Ctrl-C stops all of it
	@$(PYTHON) setup/bootstrap.py web ml js model
	@exec $(WEB) manage.py up

demo:  ## set up, close the loop once on the real model, print what improved (KEEP=1 leaves the platform running)
	@$(PYTHON) setup/bootstrap.py web ml js model
	@exec $(WEB) -m examples.demo $(if $(KEEP),--keep) $(ARGS)

stop:  ## stop the platform that runs in this folder (what KEEP=1 left, or another terminal's)
	@test -x $(WEB) || { echo "nothing is set up here, so nothing runs: run \`make setup\` first"; exit 1; }
	@$(WEB) manage.py down

test:  ## set up, run the tests in two processes (ARGS="tests/apps/gateway -x" passes arguments on; "-n 0": in one)
	@$(PYTHON) setup/bootstrap.py all
	@exec $(WEB) -m pytest -n 2 $(ARGS)

check: fmt-check  ## set up the tools; check format, lint, types, imports and migrations
	@$(WEB) -m ruff check .
	@$(WEB) -m mypy .
	@.venv/bin/lint-imports
	@$(WEB) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run

.PHONY: test-clients
test-clients:  ## set up, drive real agents (OpenClaw, Claude Code, Codex, …) against the gateway (installs them into var/clients)
	@$(PYTHON) setup/bootstrap.py all
	@exec $(WEB) -m pytest --clients $(ARGS)

.PHONY: fmt-check
fmt-check: dev-tools
	@$(WEB) -m ruff format --check .

fmt: dev-tools  ## format the code and mend what the linter can
	@$(WEB) -m ruff format .
	@$(WEB) -m ruff check --fix .

.PHONY: dev-tools
dev-tools:
	@$(PYTHON) setup/bootstrap.py dev

.PHONY: test-chaos
test-chaos: dev-tools  ## kill everything at random moments and count what is in the pool (ROUNDS=20, SEED=n repeats a run)
	@exec $(WEB) -m pytest tests/chaos --chaos-rounds $(or $(ROUNDS),20) $(if $(SEED),--chaos-seed $(SEED)) $(ARGS)

bench-gateway:  ## measure the gateway beside a bare pass-through, LiteLLM and Portkey (needs wrk and npm)
	@$(PYTHON) setup/bootstrap.py dev
	@exec $(WEB) -m bench.gateway $(ARGS)

bench-recorder:  ## measure how fast the recorder folds beside what one gateway process writes of the same calls
	@$(PYTHON) setup/bootstrap.py dev
	@exec $(WEB) -m bench.recorder $(ARGS)

bench-console:  ## measure the server's time for each page over a large pool (ARGS="--trajectories 1000000")
	@$(PYTHON) setup/bootstrap.py dev
	@exec $(WEB) -m bench.console $(ARGS)

bench-pool:  ## measure what conversations take in the pool, and how fast they come in and out
	@$(PYTHON) setup/bootstrap.py dev
	@exec $(WEB) -m bench.pool $(ARGS)

bench-trainer:  ## measure an optimizer step beside plain torch, DeepSpeed with padding and TRL
	@$(PYTHON) setup/bootstrap.py ml
	@exec .venv-ml/bin/python -m bench.trainer $(ARGS)

bench-learning:  ## measure what each recipe learns on a small real task, over seeds, staleness and group sizes
	@$(PYTHON) setup/bootstrap.py ml
	@exec env DS_ACCELERATOR=cpu .venv-ml/bin/python -m bench.learning $(ARGS)

doctor:  ## say what is wrong on this machine and what to do about it
	@$(PYTHON) setup/bootstrap.py web
	@$(WEB) manage.py doctor

clean:  ## remove environments and caches; data (var) and the model cache stay
	rm -rf .venv .venv-ml node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis test-artifacts
