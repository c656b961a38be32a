# `make help` lists the targets. Everything is installed into .venv, nothing else is touched, except
# that root gets the Debian packages that lack (see scripts/).

BIN := .venv/bin
SOURCES := $(shell find src -name __pycache__ -prune -o -print) meson.build pyproject.toml README.md \
	docs/memsampd.1 $(wildcard grafana/*.json prometheus/*.yml)
BENCHMARKS := clock_loops session_cost switch_cost replica_equality replica_speed corun web

# In the order of their folders: files with few tests, of which some take long, are not the last.
ALL_TESTS := -n 2 --dist loadfile --no-loadscope-reorder \
	--doctest-modules --doctest-glob='*.md' --pyargs ./tests ./docs memsampd

.PHONY: help demo test unit lint fuzz format bench references evaluation clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: .venv/.installed ## run the bundled example, observe it, draw it (demo-out/demo.png)
	@$(BIN)/memsampd demo

test: .venv/.installed .venv/.dev ## everything that continuous integration checks
	@scripts/test-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(ALL_TESTS)

unit: .venv/.installed .venv/.dev ## the fast tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/unit

lint: .venv/.installed .venv/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: .venv/.installed .venv/.fuzz ## the parsers of perf records, 10 min (SECONDS=60: 1 min)
	@scripts/fuzz $(or $(SECONDS),600)

format: .venv/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed .venv/.dev ## the quick form of some benchmarks (BENCHMARKS in here)
	@scripts/benchmark-tools >/dev/null || true
	@failed=; for name in $(BENCHMARKS); do \
		echo "== benchmarks/$$name.py --quick"; \
		$(BIN)/python benchmarks/$$name.py --quick || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "goals missed:$$failed" >&2; exit 1; }

evaluation: .venv/.installed .venv/.dev ## docs/evaluation.md, 40 min (QUICK=1: 7 min)
	@scripts/benchmark-tools >/dev/null || true
	PYTHONPATH=benchmarks $(BIN)/python -m evaluation \
		$(if $(QUICK),--quick,--markdown docs/evaluation.md)

references: .venv/.installed .venv/.dev ## make the exact references again (hours)
	@scripts/benchmark-tools
	$(BIN)/python benchmarks/make_references.py --all
	$(BIN)/python benchmarks/make_references.py --markdown docs/accuracy.md

clean: ## remove what was made here
	rm -rf .venv build demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/.installed: $(SOURCES) scripts/bootstrap
	@scripts/bootstrap
	@touch $@

.venv/.dev .venv/.fuzz: pyproject.toml scripts/bootstrap | .venv/.installed
	@scripts/bootstrap $(patsubst .%,%,$(@F))
	@touch $@
