# make help    these lines
# make run     the main job: everything on this machine, with an example fleet (ARGS=--once to end by itself)
# make run-kafka   the same over a Kafka, each service as two processes (Java 17 and Maven)
# make run-cluster   the services on a real Kubernetes API server, with the example fleet (Go)
# make demo-rollout   a canary that fails, a train, a quarantine, a joiner, waves (kubectl, git; Debian's prometheus)
# make test    all tests but those of a real Kafka or API server and the long campaigns: eleven minutes
# make test-fast   the unit and property tests but the slow ones: a minute and a half
# make test-rest   what `make test` leaves out: first the long, then those of a real API server and a real Kafka
# make test-all   both, so all tests    make check   format, lint, types, layers, schemas, documents
# make sbom    what pvbus is made of, as CycloneDX, in sbom.cdx.json
# make audit   known vulnerabilities of what is locked (ARGS=--strict: fails, too, where none can be looked up)
# make chaos   faults on a real Kafka and real API servers, and an independent checker (MINUTES=60, CLUSTER=real)
# make simulate   seeded schedules of users and faults in virtual time (SEEDS=2000, FIRST=1)
# make mutants   defects put into a copy, one at a time: each must be found by the tests it names (ONLY=name)
# make site    the documents as a site, in the folder site
# make bench   benchmarks, as ratios in one run        make states   state machines, as tables
# make test-kafka   the tests that need a real Kafka, of one broker and of three (Java 17 and Maven)
# make api-calls   random API calls to a real Kubernetes API server and to ours, compared (CALLS=20000, SEED=1; Go)
# make test-cluster   the tests that need a real Kubernetes API server (Go)
#
# The first target that is made sets up .venv in this folder from hash-locked wheels. Only relative paths
# are used, so the folder may be called anything.

SHELL := /bin/sh

# Images of Python set it to stay small. Without bytecode, each of the thousand processes that the tests start would
# compile all it imports, and each worker of pytest rewrite every test of every phase: that takes longer than to run
# many of them. Who changes files faster than the clock tells apart, as the mutants do, sets it again.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
TESTS ?= tests
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
SEEDS ?= 100
FIRST ?= 1
MINUTES ?= 3
CLUSTER ?= both
ONLY ?=
CALLS ?= 20000
SEED ?= 1

FIND_PYTHON = for name in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python=$$name; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or newer was found: install it (Debian and Ubuntu: apt install python3 python3-venv)" >&2; \
	  exit 1; \
	fi; \
	if ! command -v git >/dev/null 2>&1; then \
	  echo "error: git was not found: install it (Debian and Ubuntu: apt install git)" >&2; exit 1; \
	fi

.PHONY: help run run-kafka run-cluster demo-rollout test test-fast test-rest test-all test-kafka test-cluster chaos simulate api-calls mutants sbom audit check format bench states setup-run setup-dev site clean

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

run: setup-run
	.venv/bin/pvbus up --example fleet $(ARGS)

run-kafka: setup-dev
	.venv/bin/python -m tests.tools.kafka run -- \
	  .venv/bin/pvbus up --data .pvbus-kafka --bus kafka://{kafka} --processes 2 --example fleet $(ARGS)

run-cluster: setup-dev
	.venv/bin/python -m tests.tools.runcluster $(ARGS)

demo-rollout: setup-run
	.venv/bin/pvbus demo rollout $(ARGS)

# The tests of a real Kafka and of a real API server come after the others: their limits are of real time,
# which they would have to share. They come file by file, as each Kafka is there for the tests of some files, and
# the longest files first (tests/conftest.py). Each test is of one phase, but for the campaign, which people run
# (make test-kafka).
# 5 is pytest's code for a selection that is empty, as TESTS may make one of what is left out. None of what is left
# out is in tests/unit, which has most of the tests: each phase would take half a minute to look through it.
# The tests of all phases wait a third to half of the time: for processes, rollouts, restarts, sessions and
# rebalances. So there are two more at a time than there are cores, and fewer where the cores are slow.
PYTEST = .venv/bin/python -m pytest $(if $(CI),-q --durations=30)
AT_ONCE = -n $$(.venv/bin/python -m tests.tools.pace $(WORKERS))
BY_GROUP = $(AT_ONCE) --dist loadgroup
BY_FILE = $(AT_ONCE) --dist loadfile --no-loadscope-reorder --randomly-dont-reorganize
OFTEN = not kafka and not cluster and not long
LONG = long and not kafka and not cluster
REAL = (cluster or kafka) and not campaign
REST = --ignore tests/unit
PHASE = phase() { \
	  began=$$(date +%s); name=$$1; shift; \
	  "$$@" || { code=$$?; [ $$code -eq 5 ] || exit $$code; }; \
	  echo "$$name: $$(($$(date +%s) - began)) s"; \
	}

test: setup-dev
	$(PYTEST) $(BY_GROUP) -m "$(OFTEN)" $(ARGS) $(TESTS)

test-fast: setup-dev
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m "$(OFTEN) and not slow" $(ARGS) tests/unit tests/property

test-rest: setup-dev
	@$(PHASE); \
	phase "long tests" $(PYTEST) $(BY_GROUP) -m "$(LONG)" $(REST) $(ARGS) $(TESTS); \
	phase "tests on a real API server and a real Kafka" $(PYTEST) $(BY_FILE) -m "$(REAL)" $(REST) $(ARGS) $(TESTS)

test-all: setup-dev
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

test-kafka: setup-dev
	CI=true $(PYTEST) $(BY_FILE) -m kafka $(REST) $(ARGS) $(TESTS)  # CI: what is missing fails, in words

test-cluster: setup-dev
	CI=true $(PYTEST) $(BY_FILE) -m "cluster and not kafka" $(REST) $(ARGS) $(TESTS)

chaos: setup-dev
	.venv/bin/python -m tests.chaos --minutes $(MINUTES) --cluster $(CLUSTER) $(ARGS)

simulate: setup-dev
	.venv/bin/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) --workers $(WORKERS) $(ARGS)

api-calls: setup-dev
	.venv/bin/python -m tests.e2e.apicalls --calls $(CALLS) --seed $(SEED) $(ARGS)

mutants: setup-dev
	.venv/bin/python -m tests.mutants --workers $(WORKERS) $(ARGS) $(ONLY)

sbom: setup-dev
	.venv/bin/python -m deploy.sbom > sbom.cdx.json

audit: setup-dev
	.venv/bin/python -m deploy.audit $(ARGS)

check: setup-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy --strict
	.venv/bin/lint-imports
	.venv/bin/python -m schemas.generate --check
	.venv/bin/python -m deploy.generate --check
	.venv/bin/python -m tests.tools.vocabulary
	.venv/bin/python -m tests.tools.arrows
	.venv/bin/python -m tests.tools.thinmodules
	.venv/bin/python -m tests.tools.labelpath
	.venv/bin/python -m tests.tools.language
	.venv/bin/python -m docs.generate --check

site: setup-dev
	.venv/bin/python -m docs.site $(ARGS)

format: setup-dev
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: setup-dev
	.venv/bin/python -m tests.bench $(ARGS)

states: setup-dev
	.venv/bin/python -m docs.states

setup-run:
	@$(FIND_PYTHON); "$$python" requirements/install.py run

setup-dev:
	@$(FIND_PYTHON); "$$python" requirements/install.py dev

clean:
	rm -rf .venv .pvbus .pvbus-kafka .pvbus-day2 .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
