# Every target does its own setup: an environment made by uv, pinned packages, the compiled core and the TensorFlow op.
# Setup reruns only when setup.py, pyproject.toml or the pins change (for compiled code: when its sources change).
#
#   make demo           writes a real dataset and trains a Keras and a torch model from it
#   make test           the fast tests: every kind of check once, with both frameworks; about six minutes on two processors
#   make nightly        all tests, whatever they take, and everything below; before a release
#   make check          ruff, mypy, the import order of the folders, and what mypy and pyright infer in a user's file
#   make bench          every workload against the machine's limit and the installed peers; BENCH="--profile full" for more
#   make bench-quick    shuffled JPEG batches against the decoder's own limit, about a minute
#   make bench-track    appends the ratios of this commit to docs/notebook/ratios.json, and draws them over commits
#   make bench-peers    environments for the peers of `make bench`; without them their cells stay blank
#   make soak           kills and stops sidecar processes for an hour and watches elements, memory, descriptors, then fuzzes
#                       every parser for a moment; SECONDS=60 for less
#   make fuzz           every parser on mutated and hostile bytes, SECONDS=300 for each; failing inputs go to build/fuzz;
#                       those in C++, too, if there is clang with libFuzzer, or g++ with atheris
#   make faults         puts faults of the past back into a copy, one at a time: the fast tests must notice each
#   make test-slow      the tests marked slow: killed processes, memory, long searches, docs, examples
#   make test-oldest    the tests marked versions, with the lowest versions of all packages that are promised
#   make test-newest    the same with the newest Python, without torch; also all of Spark, with pyspark 4, classic and Connect; needs Java 17
#   make test-laptop    pipelines, iterable and map-style datasets in threads, with all hidden that only Linux has
#   make test-bare      the same with neither framework
#   make test-trainers  PyTorch trainers: Accelerate, the Hugging Face Trainer, Lightning, Ray; also the notebooks, and
#                       stores that answer on this machine: S3, Google Cloud Storage, HTTP
#   make sanitize       the op's client under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, the compiled
#                       core under the first two; needs gcc
#   make audit          known vulnerabilities in the pinned dependencies, by pip-audit; needs a network
#   make docs           the docs site in build/site; fails on broken links
#   make dist           sdist and wheels in dist/, with the op for each TENSORFLOWS="2.20.0 2.21.0"; minutes each
#   make check-dist     installs the wheel from `make dist` next to each TensorFlow, and reads with it without a compiler
#   make changelog      moves the fragments of changelog.d into CHANGELOG.md, under the version in pyproject.toml; DRAFT=1 prints them
#   make tag-text       prints what CHANGELOG.md says about that version
#   make clean          removes everything the targets made

# Tests start hundreds of processes. Without cached bytecode, each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
# The newest Python that TensorFlow and PyTorch both have wheels for; pyenv's, or any that uv finds.
PYTHON_NEWEST ?= $(or $(lastword $(wildcard $(shell pyenv root 2>/dev/null)/versions/3.13.*/bin/python)),3.13)

# uv makes the environments. It does not read pip's configuration: tell it where pip looks for packages.
comma := ,
UV := build/uv/bin/uv
export UV_FIND_LINKS ?= $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
export UV_DEFAULT_INDEX ?= $(or $(PIP_INDEX_URL),$(shell $(PYTHON) -m pip config get global.index-url 2>/dev/null))
ifeq ($(UV_DEFAULT_INDEX),)
unexport UV_DEFAULT_INDEX
endif

VENV := .venv
VENV_OLDEST := .venv-oldest
VENV_NEWEST := .venv-newest
VENV_BARE := .venv-bare
VENV_TRAINERS := .venv-trainers
BENCH_PEERS := .venv-bench .venv-bench-dali .venv-bench-lerobot .venv-bench-mosaic .venv-bench-petastorm .venv-bench-tables
BENCH ?=
VENV_DIST := .venv-dist
VENV_AUDIT := .venv-audit
# TensorFlow versions whose op the wheels include: every release that parquetry supports.
TENSORFLOWS ?= 2.16.1 2.16.2 2.17.0 2.17.1 2.18.0 2.18.1 2.19.0 2.19.1 2.20.0 2.21.0
# Two test processes per processor, because tests often wait for their own processes; PYTEST="-n 0" runs them in one.
PROCESSORS := $(shell $(PYTHON) -c "import os; print(min(os.cpu_count() or 1, 16))")
GROUP_PYTEST := $(or $(PYTEST),-n $(PROCESSORS) --dist worksteal)
PYTEST ?= -n $(shell expr 2 \* $(PROCESSORS)) --dist worksteal
CORE := $(wildcard common/base/native/*.cc common/base/native/*.h) common/base/native/build.py common/base/native/compiler.py
KERNELS := $(wildcard tf_plugin/kernels/*) tf_plugin/build.py

.PHONY: demo environments fuzz faults soak sanitize sanitize-core sanitize-client-memory sanitize-client-threads sanitize-client-forks audit changelog docs dist pure-dist check-dist tag-text laptop-tests test test-slow nightly check bench bench-quick bench-track bench-peers test-oldest test-newest test-bare test-laptop test-trainers clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo-built
	$(VENV)/bin/python examples/demo.py

# The three circles of tests: docs/development.md.
FAST := not slow and not nightly
test: $(VENV)/.built
	+$(call run_groups,$(FAST))

test-slow: $(VENV)/.built
	+$(call run_groups,slow and not nightly)

# Two groups at a time, each in processes of its own, which collect and import less: those of common import no framework, those of
# a plug-in only its own. A group's output comes when it ends. A group that fails does not stop the others.
run_groups = $(MAKE) --no-print-directory --keep-going -j2 --output-sync=target $(addprefix group-,engine torch tensorflow rooms others) MARKS="$(1)"
group-engine: TESTS := $(addprefix tests/common/,engine pipeline stages)
group-rooms: TESTS := tests/common $(addprefix --ignore=tests/common/,engine pipeline stages)
group-torch: TESTS := tests/torch_plugin
group-tensorflow: TESTS := tests/tf_plugin
group-others: TESTS := tests $(addprefix --ignore=tests/,common torch_plugin tf_plugin)
group-%:
	$(VENV)/bin/python -m pytest $(GROUP_PYTEST) -m "$(MARKS)" $(TESTS)

# Old and new versions run what depends on versions, with the first examples of each property test.
VERSIONS := PARQUETRY_EXAMPLES=$${PARQUETRY_EXAMPLES:-0.4}
OF_VERSIONS := versions and $(FAST)
OF_OLD_SPARK := torch
test-oldest: $(VENV_OLDEST)/.built
	$(VERSIONS) $(VENV_OLDEST)/bin/python -m pytest $(PYTEST) -m "$(OF_VERSIONS)" tests/common tests/compat tests/every_face tests/tf_plugin tests/torch_plugin
	$(VENV_OLDEST)/bin/python -m pytest -n 2 --dist worksteal -k "$(OF_OLD_SPARK)" tests/spark "$(EXAMPLE)[trainers/spark_to_torch.py]"

# The main environment runs the plug-in's tests with the same TensorFlow; the op does not depend on Python's version.
NEWEST_PLUGIN :=
test-newest: $(VENV_NEWEST)/.built
	$(VERSIONS) $(VENV_NEWEST)/bin/python -m pytest $(PYTEST) -m "$(OF_VERSIONS)" tests/common tests/compat tests/every_face $(NEWEST_PLUGIN)
	$(VENV_NEWEST)/bin/python -m pytest -n 2 --dist worksteal tests/spark
	PARQUETRY_SPARK=connect $(VENV_NEWEST)/bin/python -m pytest -n 2 --dist worksteal tests/spark

test-bare: $(VENV_BARE)/.built
	$(VENV_BARE)/bin/python -c "from importlib.util import find_spec; assert not (find_spec('tensorflow') or find_spec('torch'))"
	$(VERSIONS) $(VENV_BARE)/bin/python -m pytest $(PYTEST) -m "$(OF_VERSIONS)" tests/common tests/every_face

# Threads of every class without what only Linux has; of the map-style and the iterable dataset, with loader workers, too.
LAPTOP_TESTS := tests/common/pipeline/test_iteration.py tests/common/pipeline/test_pipeline.py tests/common/pipeline/test_random_access.py tests/torch_plugin/test_iterable.py tests/torch_plugin/test_map.py
laptop-tests:
	@echo $(LAPTOP_TESTS)
test-laptop: $(VENV)/.built
	PYTHONPATH=tests $(VENV)/bin/python -m pytest -p laptop -n 0 -m "$(FAST)" -k "not sidecar" $(LAPTOP_TESTS)

check: $(VENV)/.installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy benchmarks fuzz
	$(VENV)/bin/towncrier build --draft --version next > /dev/null  # fails if a fragment has a wrong name
	rm -rf build/installed build/user build/lib build/bdist.*
	PARQUETRY_NATIVE=0 $(UV) pip install --quiet --no-deps --python $(VENV) --target build/installed .
	cd build/installed && ../../$(VENV)/bin/python -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p parquetry
	cd build/installed && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --no-cache
	$(call user_environment,build/user,build/installed)
	cp tests/types/* build/user
	cd build/user && ../../$(VENV)/bin/python -m mypy --strict --python-executable bin/python --cache-dir ../../.mypy_cache user_file.py
	cd build/user && ../../$(VENV)/bin/basedpyright --pythonpath bin/python user_file.py

bench: $(VENV)/.built
	$(VENV)/bin/python -m benchmarks.run $(BENCH)

bench-quick: $(VENV)/.built
	$(VENV)/bin/python -m benchmarks.run --name quick --workloads a --contenders threads,sidecar,tf-eager,iterable,iterable-loader

# On a machine that does nothing else; commit the two files that it changes.
bench-track: $(VENV)/.built
	$(VENV)/bin/python -m benchmarks.run --name track --no-plot --workloads a,b,c-ndarray,d --contenders threads,iterable,tf-eager $(BENCH)
	$(VENV)/bin/python -m benchmarks.track bench-results/track.json docs/notebook/ratios.json

soak: $(VENV)/.built
	$(VENV)/bin/python -m benchmarks.soak --seconds $(or $(SECONDS),3600)

# Guided by coverage if atheris (wheels for Linux only) is installed; TARGETS="npy pickles" for some of them.
fuzz: $(VENV)/.installed
	-$(UV) pip install --quiet --python $(VENV) -c constraints.txt "$$(grep -o 'atheris==[^;]*' constraints.txt)"
	$(VENV)/bin/python -m fuzz.run --seconds $(or $(SECONDS),300) $(TARGETS)

faults: $(VENV)/.built
	$(VENV)/bin/python -m tests.faults_put_back

bench-peers: $(addsuffix /.installed,$(BENCH_PEERS)) $(VENV_OLDEST)/.installed

# The op's client without TensorFlow: its forks, threads and parsers, under the compiler's sanitizers.
# Neither AddressSanitizer nor ThreadSanitizer supports a child forked while threads run: the child waits for the lock of
# the sanitizer's own allocator, or may not start threads. Those tests run under UndefinedBehaviorSanitizer.
# The core runs inside a Python built without the sanitizers, so their library is preloaded, and that of C++, whose exceptions
# it intercepts. `make -j2 sanitize` runs two parts at once.
FORK_STORM := test_forks_beside_a_busy_thread_do_not_deadlock
FORKS := $(FORK_STORM) or test_a_forked_child_leaves_its_parents_sidecars_alone
sanitize: sanitize-core sanitize-client-memory sanitize-client-threads sanitize-client-forks

sanitize-client-memory: $(VENV)/.installed
	PARQUETRY_SANITIZE=address,undefined PARQUETRY_FUZZ_RUNS=2000000 $(VENV)/bin/python -m pytest -n 0 tests/tf_plugin/test_sidecar_client.py -k "not ($(FORKS))"

sanitize-client-threads: $(VENV)/.installed
	PARQUETRY_SANITIZE=thread TSAN_OPTIONS=die_after_fork=0 $(VENV)/bin/python -m pytest -n 0 tests/tf_plugin/test_sidecar_client.py -k "not $(FORK_STORM)"

sanitize-client-forks: $(VENV)/.installed
	PARQUETRY_SANITIZE=undefined $(VENV)/bin/python -m pytest -n 0 tests/tf_plugin/test_sidecar_client.py -k "$(FORKS)"

sanitize-core: $(VENV)/.installed
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 PARQUETRY_SANITIZE=address,undefined CXX=g++ $(VENV)/bin/python -m pytest -n 0 -s tests/common/base/native

# Known vulnerabilities in the dependencies; run before a release. Needs a network.
audit: $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV_AUDIT)
	$(UV) pip install --quiet --python $(VENV_AUDIT) pip-audit
	for pins in constraints*.txt; do \
	    $(VENV_AUDIT)/bin/python -m pip_audit --strict --requirement $$pins --no-deps --disable-pip || exit 1; \
	done

# CI makes them beside work that needs none of them.
environments: $(VENV_OLDEST)/.built $(VENV_NEWEST)/.built $(VENV_BARE)/.built $(VENV_TRAINERS)/.installed

# A file's tests stay in one process, because ranks that train once are the fixture of a whole file; files that take long come
# first. `make test-slow` runs the examples that need nothing of this environment.
ALSO_WITHOUT_TRAINERS := trainers/checkpointed_loop trainers/launched_loop trainers/pretraining_loop
EXAMPLE := tests/examples/test_examples.py::test_an_example_runs_and_prints_what_it_promises
OF_TRAINERS := not nightly
test-trainers: $(VENV_TRAINERS)/.installed
	$(VENV_TRAINERS)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(patsubst %,--deselect "$(EXAMPLE)[%.py]",$(ALSO_WITHOUT_TRAINERS)) --ignore tests/examples/test_first_hour.py -m "$(OF_TRAINERS)" tests/examples tests/trainers tests/stores

# Everything, however long it takes.
nightly: check $(VENV)/.built environments
	+$(call run_groups,)
	$(MAKE) test-oldest test-newest test-bare VERSIONS= OF_VERSIONS=versions OF_OLD_SPARK= NEWEST_PLUGIN=tests/tf_plugin
	$(MAKE) test-trainers OF_TRAINERS=
	$(MAKE) sanitize docs demo faults
	$(MAKE) fuzz SECONDS=60
	$(MAKE) soak SECONDS=600

docs: $(VENV)/.installed
	mkdir -p build/docs/parquetry
	ln -sfn $(addprefix $(CURDIR)/,$(wildcard parquetry/*.py) common tf_plugin torch_plugin) build/docs/parquetry
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# Wheels: a pure one, and one with the core and the op for each TensorFlow, for any Python (they do not use its ABI).
dist: $(addsuffix /.op,$(addprefix build/tensorflow-,$(TENSORFLOWS)))
	PARQUETRY_OPS=$(abspath build/ops) $(VENV_DIST)/bin/python -m build --wheel --outdir build/wheel
	PATH=$(abspath $(VENV_DIST)/bin):$$PATH auditwheel repair --exclude 'libtensorflow_framework.so.*' --wheel-dir dist build/wheel/*.whl
	$(VENV_DIST)/bin/twine check --strict dist/*

pure-dist: $(VENV_DIST)/.installed
	rm -rf dist build/wheel build/ops
	PARQUETRY_NATIVE=0 $(VENV_DIST)/bin/python -m build

build/tensorflow-%/.op: pure-dist
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(@D)
	$(UV) pip install --quiet --python $(@D) "$$(echo dist/*-py3-none-any.whl)[tensorflow]" tensorflow==$* $(if $(filter 2.16.% 2.17.%,$*),"pyarrow<21")
	$(UV) pip install --quiet --python $(@D) --reinstall --no-deps dist/*-py3-none-any.whl
	cd build && tensorflow-$*/bin/python -m parquetry.tf_plugin.build ops  # not here, where parquetry/ is a folder

# First with the base requirements alone, with no compiler and none of this machine's variables: each wheel, and the sdist.
check-dist: | $(UV)
	for part in dist/*.whl dist/*.tar.gz; do \
	    $(UV) venv --quiet --clear --python $(PYTHON) build/base && $(UV) pip install --quiet --python build/base $$part && \
	    env -i PATH=$(CURDIR)/build/base/bin HOME=$(CURDIR)/build/base build/base/bin/python -I tests/wheels/try_base.py $$part $(VERSION) || exit 1; \
	done
	for version in $(TENSORFLOWS); do \
	    folder=build/tensorflow-$$version; \
	    $(UV) pip install --quiet --python $$folder --reinstall --no-deps dist/*manylinux*.whl && \
	    PATH=$(CURDIR)/$$folder/bin CXX= TF_CPP_MIN_LOG_LEVEL=3 $$folder/bin/python tests/wheels/try_wheel.py || exit 1; \
	done

VERSION = $(shell $(PYTHON) -c "import tomllib; print(tomllib.load(open('pyproject.toml', 'rb'))['project']['version'])")
changelog: $(VENV)/.installed
	$(VENV)/bin/towncrier build --version $(VERSION) $(if $(DRAFT),--draft,--yes)

tag-text:
	@awk -v head="## $(VERSION)" '/^## / { inside = $$0 == head; if (inside) { print "parquetry $(VERSION)"; next } } inside' CHANGELOG.md

clean:
	rm -rf $(VENV) $(VENV_DIST) $(VENV_AUDIT) $(VENV_OLDEST) $(VENV_NEWEST) $(VENV_BARE) $(BENCH_PEERS) $(VENV_TRAINERS) build dist *.egg-info tf_plugin/*.so tf_plugin/*.lock common/base/native/built
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-data bench-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version + "; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install --quiet uv==0.13.9

# The demo needs no tools; everything else adds them to the same environment.
$(VENV)/.demo-installed: setup.py pyproject.toml constraints.txt | $(UV)
	$(call new_environment,$(PYTHON),$(@D),constraints.txt,tensorflow$(comma)torch$(comma)demo)
	touch $@

$(VENV)/.installed: $(VENV)/.demo-installed
	$(UV) pip install --quiet --python $(@D) -c constraints.txt -e ".[tensorflow,torch,dev,docs]"
	touch $@

$(VENV_OLDEST)/.installed: setup.py pyproject.toml constraints-oldest.txt | $(UV)
	$(call new_environment,$(PYTHON),$(@D),constraints-oldest.txt,tensorflow-io$(comma)torch$(comma)spark$(comma)test)
	touch $@

$(VENV_NEWEST)/.installed: setup.py pyproject.toml constraints-newest.txt | $(UV)
	$(call new_environment,$(PYTHON_NEWEST),$(@D),constraints-newest.txt,tensorflow$(comma)spark-connect$(comma)test)
	touch $@

$(VENV_BARE)/.installed: setup.py pyproject.toml constraints.txt | $(UV)
	$(call new_environment,$(PYTHON),$(@D),constraints.txt,test)
	touch $@

$(VENV_TRAINERS)/.installed: setup.py pyproject.toml constraints-trainers.txt | $(UV)
	$(call new_environment,$(PYTHON),$(@D),constraints-trainers.txt,trainers$(comma)examples$(comma)stores$(comma)test)
	touch $@

.venv-bench/.installed: benchmarks/peers/bench.txt
.venv-bench-dali/.installed: benchmarks/peers/dali.txt
.venv-bench-lerobot/.installed: benchmarks/peers/lerobot.txt
.venv-bench-mosaic/.installed: benchmarks/peers/mosaic.txt
.venv-bench-petastorm/.installed: benchmarks/peers/petastorm.txt
# Petastorm wants an older setuptools than torch does; it works with torch's.
.venv-bench-petastorm/.installed: export UV_OVERRIDE := benchmarks/peers/petastorm-overrides.txt
.venv-bench-tables/.installed: benchmarks/peers/tables.txt
$(addsuffix /.installed,$(BENCH_PEERS)): | $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(@D)
	$(UV) pip install --quiet --python $(@D) -r $<
	touch $@

$(VENV_DIST)/.installed: constraints-dist.txt | $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(@D)
	$(UV) pip install --quiet --python $(@D) -r $<
	touch $@

# The core and the op, at the same time; byte code, so that a sidecar's processes start without compiling the package. Without a
# compiler, numpy does the core's work.
$(VENV)/.demo-built: $(VENV)/.demo-installed $(CORE) $(KERNELS)
	$(call build_libraries,$(@D))
	touch $@

$(VENV)/.built: $(VENV)/.installed $(VENV)/.demo-built
	touch $@

%/.built: %/.installed $(CORE) $(KERNELS)
	$(call build_libraries,$(@D))
	touch $@

# $(call new_environment,PYTHON,FOLDER,PINS,EXTRAS)
define new_environment
$(UV) venv --quiet --allow-existing --python $(1) $(2)
$(UV) pip install --quiet --python $(2) -c $(3) -e ".[$(4)]"
endef

# $(call build_libraries,FOLDER)
define build_libraries
$(1)/bin/python -m compileall -q parquetry common tf_plugin torch_plugin
$(1)/bin/python -m parquetry.common.base.native.build & core=$$!; \
if $(1)/bin/python -c "from importlib.util import find_spec; exit(not find_spec('tensorflow'))"; then $(1)/bin/python -m parquetry.tf_plugin.build || exit 1; fi; \
wait $$core || true
endef

# An environment with the packages of .venv, and parquetry installed as for a user: not editable.
define user_environment
$(VENV)/bin/python -m venv --without-pip $(1)
$(VENV)/bin/python -c "import sysconfig; print('$(abspath $(2))', sysconfig.get_path('purelib'), sep='\n')" > $$(echo $(1)/lib/python*/site-packages)/parquetry.pth
endef
