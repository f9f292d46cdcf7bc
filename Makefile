# `make demo` runs a whole fleet on this machine; `make test` passes the tests. Everything is kept in .venv/,
# .venv-engine/, .venv-clients/ and .demo/ of this folder, and `make clean` takes it away again.
PYTHON ?= python3
DSV41 := .venv/bin/dsv41
.DEFAULT_GOAL := help
.PHONY: help demo engine test faults test-fast test-engine test-nix test-systemd test-vm test-bed lint bench schema clean

help:
	@echo "make demo                         a three-rank fleet on this machine; Ctrl-C stops it"
	@echo 'make demo ARGS="--engine scripted"  the same in seconds, without the download'
	@echo 'make demo ARGS="--once --json"    once, with a report'
	@echo "make test                         all tests (about 3 GB of downloads the first time)"
	@echo "make test-fast                    the tests that need no engine"
	@echo "make lint | bench NAME=rowstore|loop|fabric|supervisor|gateway | clean"

# The supervisor's environment: no torch. The script does nothing when it is up to date.
.venv: FORCE
	@$(PYTHON) tools/make_venv.py
FORCE:

# LiteLLM, schemathesis and other clients that tests run against the gateway.
.venv-clients: .venv FORCE
	@$(PYTHON) tools/make_clients.py

engine: .venv
	@$(DSV41) demo --prepare-only

demo: .venv
	@$(DSV41) demo $(ARGS) || { status=$$?; [ $$status -eq 130 ] || exit $$status; }

test: .venv engine .venv-clients
	.venv/bin/pytest $(ARGS)

test-fast: .venv .venv-clients
	.venv/bin/pytest --ignore=tests/engine $(ARGS)

test-engine: .venv engine .venv-clients
	.venv/bin/pytest tests/engine $(ARGS)

test-nix: .venv
	.venv/bin/pytest tests/eval $(ARGS)

# Containers with a real systemd run the rendered units; needs root, systemd-container, dbus and polkitd.
test-systemd: .venv
	.venv/bin/pytest tests/nspawn tests/units_contract $(ARGS)

# Injects every fault and prints what was measured, as a table.
faults: .venv
	@mkdir -p .demo && rm -f .demo/faults.jsonl
	@DSV41_FAULT_REPORT=$(CURDIR)/.demo/faults.jsonl .venv/bin/pytest tests/faults -q $(ARGS); status=$$?; \
	  .venv/bin/python -m tests.harness.faults .demo/faults.jsonl && exit $$status

# Boots the machines of tests/vm: needs Nix with nixpkgs, and KVM.
test-vm:
	@tests/vm/run $(ARGS)

# Three emulated machines with soft-RoCE: ten minutes. Needs root, QEMU, a gigabyte below .demo/bed and, the first time, a
# Debian mirror.
test-bed: .venv
	DSV41_BED=$${DSV41_BED:-.demo/bed} .venv/bin/pytest tests/bed $(ARGS)

lint: .venv
	.venv/bin/ruff check .


bench: .venv
	.venv/bin/python tests/bench/$(NAME).py $(ARGS)

schema: .venv
	@$(DSV41) schema > modules/settings.schema.json.tmp
	@mv modules/settings.schema.json.tmp modules/settings.schema.json
	@$(PYTHON) tools/option_reference.py

clean:
	rm -rf .venv .venv-engine .venv-clients .demo
