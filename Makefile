# install  makes .venv with armillary and its development tools (every other target does this first)
# demo     a clip from the shipped toy world, drawn on two ranks and in one process, and how far apart
# test     every test but the soak        soak   the full figures, kept in benchmarks/results/
# lint     ruff, mypy, hadolint           bench  this library beside its peers: JSON with ratios

PYTHON ?= python3
BIN := .venv/bin
# Younger than both files once what they ask for is installed. A .venv made by hand has none and gets one.
STAMP := .venv/.installed

GENERATE := $(BIN)/armillary generate toy-world --prompt "a red circle moving left" --seed 3

.PHONY: install demo test soak lint bench

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: armillary needs Python 3.11 or newer, $(PYTHON) is not; use make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

demo: $(STAMP)
	@mkdir -p demo
	$(GENERATE) --tensor-parallel-size 2 -o demo/two.mp4
	$(GENERATE) --tensor-parallel-size 2 -o demo/two.npz
	$(GENERATE) -o demo/one.npz
	$(BIN)/python examples/compare.py demo/one.npz demo/two.npz
	$(BIN)/python examples/side_by_side.py demo/one.npz demo/two.npz -o demo/side-by-side.gif

test: $(STAMP)
	$(BIN)/python -m pytest -m "not soak" -n 2 --dist loadfile   # ranks start once a file

soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

bench: $(STAMP)
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/generate.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/serve.py

# toy  trains the checkpoint that ships with the package again, in place: an hour on two cores; resumes when stopped
.PHONY: toy
toy: $(STAMP)
	$(BIN)/python -m toy.vae toy/run --processes 2
	$(BIN)/python -m toy.denoiser toy/run --processes 2
	$(BIN)/python -m toy.publish toy/run src/armillary/assets/toy-world
	$(BIN)/python -m toy.evaluate src/armillary/assets/toy-world > toy/scores.json
