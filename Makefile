# `make` without a target lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run on this many cores; each may start a simulator, so more is not always faster.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo explore-demo docs figures figures-check site check test tests tests-nightly lint types format tutorials bench fuzz safety mutants proofs coverage netlists products races programs nightly performance area routes area-model resources bitstreams clean

help:  ## List the targets
	@perl -ne 'printf "  make %-14s %s\n", $$1, $$2 if /^([\w-]+):.*?## (.*)/' Makefile

setup: $(VENV)/.made  ## Make .venv with all dependencies of `make test`; quick when it is up to date

demo: setup  ## Classify handwritten digits on the simulated machine
	$(BIN)/python examples/digits/demo.py

explore-demo: setup  ## Try twelve machines for the handwritten digits, with a report
	$(BIN)/vta explore examples/exploration/digits.toml -o build/explore-digits

docs: setup  ## Regenerate the pages on registers and instructions
	$(BIN)/python -m amaranth_vta.reference docs

figures: setup  ## Redraw the figures of the documentation, from runs on the RTL
	$(BIN)/python -m docs.drawing

figures-check: setup  ## Compare figures and tables of the documentation with what draws and measures them; an hour
	$(BIN)/python -m docs.drawing --check
	$(BIN)/python benchmarks/performance.py --check
	$(BIN)/python benchmarks/networks.py --check
	$(BIN)/python benchmarks/study.py --check
	$(BIN)/python benchmarks/scaling.py --check
	$(BIN)/python benchmarks/energy.py --check

site: setup  ## Build the documentation as a site, in build/site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[site]'
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/site
	@echo build/site/index.html

test: setup lint  ## Lint, format check, types and tests
	@$(MAKE) --no-print-directory --jobs 2 types tests

check: setup  ## Lint, types and the tests that your changes affect, without building simulators; a minute
	$(BIN)/python -m tests.check --jobs $(JOBS)

# Types are checked while the tests run: that takes a core for a minute, and no worker waits for it.
tests: setup
	$(BIN)/pytest -n $(JOBS) -p tests.support.processor_time

tests-nightly: setup  ## Run the tests that `make test` leaves out: more machines, seeds and simulators; minutes
	VTA_QUICK_BUILD=0 $(BIN)/pytest -n $(JOBS) -m nightly

lint: setup  ## Lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## Check types
	$(BIN)/mypy

format: setup  ## Fix and format the sources as lint asks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tutorials: setup  ## Run the tutorials and rewrite their outputs
	$(BIN)/pytest -n $(JOBS) --rewrite-golden -m "nightly or not nightly" tests/docs

bench: setup  ## Measure how fast the compiled machine, the models and the compiler run
	$(BIN)/python benchmarks/simulation_speed.py
	$(BIN)/python benchmarks/pysim_speed.py
	$(BIN)/python benchmarks/functional_speed.py
	$(BIN)/python benchmarks/estimate_accuracy.py
	$(BIN)/python benchmarks/compile_speed.py
	$(BIN)/python benchmarks/fused_graphs.py

fuzz: setup  ## Give 10,000 damaged and hostile files to the command line; a quarter of an hour
	$(BIN)/python benchmarks/fuzz_files.py --jobs $(JOBS)

safety: setup  ## Disturb 10,000 runs of the machine: resets, stuck memory, errors, flipped bits, garbage; minutes
	$(BIN)/python benchmarks/safety.py --jobs $(JOBS)

mutants: setup  ## Plant 350 bugs in hardware, model, passes and runtime, and list what catches each; an hour. RESUME=--resume goes on with an earlier run
	$(BIN)/python -m tests.mutants --jobs $(JOBS) --json build/mutants.json $(RESUME)

proofs: setup  ## Prove queues, arbiter, transfers, retirement and banks, and that planted bugs are seen; minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[formal]'
	$(BIN)/python -m tests.formal --jobs $(JOBS)

coverage: setup  ## Count the lines and toggles of the machine that random programs reach; minutes
	$(BIN)/python benchmarks/coverage.py --unreached build/unreached.txt --json build/coverage.json

netlists: setup  ## Run random programs on machines and a board after synthesis for ECP5, 7-series and Gowin; an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fpga]'
	$(BIN)/python -m pytest -q -m "nightly or not nightly" tests/sim/machine/rtl/test_dot_products.py
	$(BIN)/python benchmarks/netlists.py
	$(BIN)/python benchmarks/netlists.py --config ecp5-25f --config tiny-extended --family ecp5
	$(BIN)/python benchmarks/netlists.py --config ecp5-85f --family ecp5
	$(BIN)/python benchmarks/netlists.py --board ulx3s-sdram --board tang-primer-20k --programs 3

products: setup  ## Run ResNet-18 on the RTL with the multipliers that synthesis gets, not loops; minutes
	$(BIN)/python benchmarks/shipped_products.py

races: setup  ## Check whole networks for races between modules; minutes
	$(BIN)/python benchmarks/races.py

programs: setup  ## Run ten million random instructions on all simulators; hours
	$(BIN)/vta fuzz --programs 41000 --random-configs 20 --devices functional,rtl,cxxrtl --jobs $(JOBS) --keep build/fuzz
	$(BIN)/vta fuzz --programs 4000 --machines 2 --jobs $(JOBS) --keep build/fuzz
	$(BIN)/vta fuzz --programs 1000 --machines 4 --memory-bus 64 --jobs $(JOBS) --keep build/fuzz

nightly: setup tests-nightly fuzz safety mutants proofs netlists products races figures-check programs  ## All of these; hours

performance: setup  ## Measure cycles and simulation speed, and write docs/performance.md
	$(BIN)/python benchmarks/performance.py

resources: setup  ## Synthesize for a Zynq-7020 and write bitstreams/resources.md; minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fpga]'
	$(BIN)/python benchmarks/resources.py

area: setup  ## Synthesize every preset for a Zynq-7020 and an ECP5, flattened; long
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fpga]'
	$(BIN)/python benchmarks/area.py

routes: setup  ## Place and route arrays of 4x4, 8x8 and 16x8 on an ECP5, for their area and clock; hours
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fpga]'
	$(BIN)/python benchmarks/area.py --route

area-model: setup  ## Fit the model of `vta estimate-area` to synthesis; an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fpga]'
	$(BIN)/python benchmarks/area_model.py
	$(BIN)/python benchmarks/arbiter_area.py

bitstreams: setup  ## Rebuild the boards' bitstreams, in bitstreams/; many minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fpga]'
	$(BIN)/python benchmarks/bitstreams.py

clean:  ## Remove .venv and what builds left behind
	rm -rf $(VENV) build dist sim_build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The stamp is newer than pyproject.toml when the environment holds what pyproject.toml asks for.
$(VENV)/.made: pyproject.toml
	@PYTHON="$(PYTHON)" sh .ci/venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
