# Common tasks: `make demo` demonstrates hibali, `make test` tests it with real servers; `make` lists all.
# Requirements: Debian 12 (or another Linux with Python 3.11), python3, python3-venv, make and git.

PYTHON_HERE = .venv/bin/python
BIN = .venv/bin

.PHONY: help demo globus-smoke test test-all soak check structure docs bench bench-full lock dist sbom environment clean

help:
	@echo "make demo      push, run, collect and verify real data between two local sites (.demo/)"
	@echo "make globus-smoke  with a Globus account: log in, copy, verify, delete (CLIENT_ID= SOURCE= TARGET=; docs/globus.md)"
	@echo "make test      all tests except the heavy ones, with real servers; as root, installs the Debian packages they need"
	@echo "make test-all  every test"
	@echo "make soak      kill and interrupt commands at random moments for an hour (MINUTES=60, KILLS=300, SEED=, JOBS=2, ONLY=, WIDE=1)"
	@echo "make check     style, types, layers, the remote agent's Python version, generated files"
	@echo "make structure count lines, modules and floors, and trace what four commands load (OPTIONS=--help)"
	@echo "make docs      regenerate completions/ and man/ from the commands, and build the HTML documentation in build/docs/html"
	@echo "make bench     compare hibali's speed with rsync, scp, s5cmd and others within an hour (CASES=, OPTIONS=--help)"
	@echo "make bench-full  the same with the full sizes and rounds, for hours"
	@echo "make lock      update requirements.lock, with hashes"
	@echo "make dist      build the wheel and the source archive in dist/"
	@echo "make sbom      update packaging/sbom.cdx.json and packaging/LICENCES.md from requirements.lock"

demo: environment
	@sh demo/run.sh

globus-smoke: environment
	@CLIENT_ID='$(CLIENT_ID)' SOURCE='$(SOURCE)' TARGET='$(TARGET)' HTTPS='$(HTTPS)' sh tests/globus_smoke.sh

test:
	@sh tests/run.sh -m "not heavy"

test-all:
	@UNTIL=$(UNTIL) sh tests/run.sh $(if $(ONLY),-m $(ONLY))

soak: environment
	@$(PYTHON_HERE) -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(KILLS),--kills $(KILLS)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(ONLY),--only $(ONLY)) \
	    $(if $(OPERATIONS),--operations $(OPERATIONS)) $(if $(STORES),--stores $(STORES)) \
	    $(if $(WIDE),--wide)

check: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin -t=3.6- --no-tips transfers/agent transfers/remote/streams.py hibali_plugins/nodes/program runs/flatten.py
	$(BIN)/vermin -t=3.9- --no-tips --no-eval-annotations hibali_plugins/pilots/program.py
	$(PYTHON_HERE) -m docs.tools.generate --check

structure: environment
	$(PYTHON_HERE) -m benchmarks.structure $(OPTIONS)

docs: environment
	$(PYTHON_HERE) -m docs.tools.generate
	@sh docs/build.sh

bench: environment
	@sh tests/prepare.sh swift
	$(PYTHON_HERE) -m benchmarks $(CASES) $(OPTIONS)

bench-full: environment
	@sh tests/prepare.sh swift
	$(PYTHON_HERE) -m benchmarks --full $(CASES) $(OPTIONS)

lock:
	@sh tests/lock.sh

dist: environment
	$(PYTHON_HERE) -m hatchling build -d dist

sbom: environment
	$(PYTHON_HERE) packaging/sbom.py

environment:
	@sh tests/prepare.sh environment

clean:
	rm -rf .venv .demo build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
