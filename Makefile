# Every target does its own setup: a virtual environment, pinned packages, the compiled core and the TensorFlow op.
# Setup reruns only when setup.py, pyproject.toml or the pins change (for compiled code: when its sources change).
#
#   make demo         writes a real dataset and trains a Keras and a torch model from it
#   make test         the test suite with both frameworks installed, without the tests marked slow or seconds
#   make test-slow    the tests marked slow (long searches, killed processes, memory, docs, examples) or seconds (of processor
#                     time); CI runs both
#   make check        ruff, mypy, the import order of the folders, and what mypy and pyright infer in a user's file
#   make bench        every workload against the machine's limit and the installed peers; BENCH="--profile full" for more
#   make bench-quick  shuffled JPEG batches against the decoder's own limit, about a minute
#   make bench-peers  environments for the peers of `make bench`; without them their cells stay blank
#   make soak         kills and stops sidecar processes for an hour and watches elements, memory, descriptors, then fuzzes
#                     every parser for a moment; SECONDS=60 for less
#   make fuzz         every parser on mutated and hostile bytes, SECONDS=300 for each; failing inputs go to build/fuzz;
#                     those in C++, too, if there is clang with libFuzzer, or g++ with atheris
#   make test-common  the tests of common, in an environment with neither framework
#   make test-tf217   the tests of the TensorFlow plug-in, with TensorFlow 2.17, numpy 1.26 and pyarrow 18
#   make test-tf216   Arrow streams read by tensorflow-io, with TensorFlow 2.16, the one it runs with
#   make test-trainers  PyTorch trainers: Accelerate, the Hugging Face Trainer, Lightning, Ray; also the notebooks, and
#                     stores that answer on this machine: S3, Google Cloud Storage, HTTP
#   make test-spark   the tests of the Spark support, with pyspark 4 and both frameworks; needs Java 17 or newer
#   make sanitize     the op's client under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, the compiled core
#                     under the first two; needs gcc
#   make audit        known vulnerabilities in the pinned dependencies, by pip-audit; needs a network
#   make docs         the docs site in build/site; fails on broken links
#   make dist         sdist and wheels in dist/, with the op for each TENSORFLOWS="2.20.0 2.21.0"; minutes each
#   make check-dist   installs the wheel from `make dist` next to each TensorFlow, and reads with it without a compiler
#   make clean        removes everything the targets made

# Tests start hundreds of processes. Without cached bytecode, each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PYTHON_TF217 ?= $(PYTHON)
PYTHON_TF216 ?= $(PYTHON_TF217)

VENV := .venv
VENV_COMMON := .venv-common
VENV_TF217 := .venv-tf217
VENV_TF216 := .venv-tf216
VENV_SPARK := .venv-spark
VENV_TRAINERS := .venv-trainers
VENV_DOCS := .venv-docs
BENCH_PEERS := .venv-bench .venv-bench-dali .venv-bench-mosaic .venv-bench-petastorm .venv-bench-tables
BENCH ?=
VENV_DIST := .venv-dist
VENV_AUDIT := .venv-audit
# TensorFlow versions whose op the wheels include: every release that parquetry supports.
TENSORFLOWS ?= 2.16.1 2.16.2 2.17.0 2.17.1 2.18.0 2.18.1 2.19.0 2.19.1 2.20.0 2.21.0
# Two test processes per processor, because tests often wait for their own processes; PYTEST="-n 0" runs them in one.
JOBS := $(shell $(PYTHON) -c "import os; print(min(2 * (os.cpu_count() or 1), 32))")
PYTEST ?= -n $(JOBS) --dist worksteal
# Property tests draw all of their examples in the main environment, and the first ones again in those of other versions.
FEWER_EXAMPLES := PARQUETRY_EXAMPLES=$${PARQUETRY_EXAMPLES:-0.4}
CORE := $(wildcard common/native/*.cc common/native/*.h) common/native/build.py common/native/compiler.py
KERNELS := $(wildcard tf_plugin/kernels/*) tf_plugin/build.py

.PHONY: demo environments fuzz soak sanitize sanitize-core sanitize-client-memory sanitize-client-threads sanitize-client-forks audit docs dist pure-dist check-dist test test-slow check bench bench-quick bench-peers test-common test-tf217 test-tf216 test-spark test-trainers clean
.DELETE_ON_ERROR:
.PRECIOUS: %/.core-built

demo: $(VENV)/.op-built
	$(VENV)/bin/python examples/demo.py

test: $(VENV)/.op-built
	$(VENV)/bin/python -m pytest $(PYTEST) -m "not slow and not seconds"

test-slow: $(VENV)/.op-built
	$(VENV)/bin/python -m pytest $(PYTEST) -m "slow or seconds"

check: $(VENV)/.installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy benchmarks fuzz
	rm -rf build/installed build/user build/lib build/bdist.*
	$(VENV)/bin/python -m pip install --quiet --no-deps --target build/installed .
	cd build/installed && ../../$(VENV)/bin/python -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p parquetry
	cd build/installed && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --no-cache
	$(call user_environment,build/user,build/installed)
	cp tests/types/* build/user
	cd build/user && ../../$(VENV)/bin/python -m mypy --strict --python-executable bin/python --cache-dir ../../.mypy_cache user_file.py
	cd build/user && ../../$(VENV)/bin/basedpyright --pythonpath bin/python user_file.py

bench: $(VENV)/.op-built
	$(VENV)/bin/python -m benchmarks.run $(BENCH)

bench-quick: $(VENV)/.op-built
	$(VENV)/bin/python -m benchmarks.run --name quick --workloads a --contenders threads,sidecar,tf-eager,pipe,pipe-loader

soak: $(VENV)/.op-built
	$(VENV)/bin/python -m benchmarks.soak --seconds $(or $(SECONDS),3600)

# Guided by coverage if atheris (wheels for Linux only) is installed; TARGETS="npy pickles" for some of them.
fuzz: $(VENV)/.installed
	-$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[fuzz]"
	$(VENV)/bin/python -m fuzz.run --seconds $(or $(SECONDS),300) $(TARGETS)

bench-peers: $(addsuffix /.installed,$(BENCH_PEERS)) $(VENV_TF217)/.installed

# The tests of rooms that never look for a framework run in the other environments. Here, every_face reads through all of them,
# in this process and in sidecars.
NEVER_NEAR_FRAMEWORKS := arrow_stream engine layout native order pipeline plan predicates schema selection stages transport write
test-common: $(VENV_COMMON)/.core-built
	$(VENV_COMMON)/bin/python -c "from importlib.util import find_spec; assert not (find_spec('tensorflow') or find_spec('torch'))"
	$(FEWER_EXAMPLES) $(VENV_COMMON)/bin/python -m pytest $(PYTEST) -m "not slow" $(addprefix --ignore=tests/common/,$(NEVER_NEAR_FRAMEWORKS)) tests/common tests/every_face

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
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 PARQUETRY_SANITIZE=address,undefined CXX=g++ $(VENV)/bin/python -m pytest -n 0 -s tests/common/native

# Known vulnerabilities in the dependencies; run before a release. Needs a network.
audit:
	$(call new_venv,$(PYTHON),$(VENV_AUDIT))
	$(VENV_AUDIT)/bin/python -m pip install --quiet pip-audit
	for pins in constraints*.txt; do \
	    $(VENV_AUDIT)/bin/python -m pip_audit --strict --requirement $$pins --no-deps --disable-pip || exit 1; \
	done

# The rooms of common whose work depends on the versions of numpy, pyarrow and opencv. Others run in `make test` alone:
#   native: C++ on bytes; layout and engine/steps/test_images.py hold it against this pyarrow and this opencv
#   arrow_stream, transport/served: `make test-tf216` has the same numpy and pyarrow; here, test_arrow_transport.py uses them
#   pipeline/test_resume.py: tests/tf_plugin/test_resume.py and every_face resume here, and `order` counts rows here
#   the files of engine/run named here: which rows are left, in which batches, whatever the rows hold
OF_ANY_VERSION := $(addprefix tests/common/engine/run/,test_bucket_skipping.py test_drops.py test_uneven_batches.py)
test-tf217: $(VENV_TF217)/.op-built
	$(FEWER_EXAMPLES) $(VENV_TF217)/bin/python -m pytest $(PYTEST) -m "not slow" $(addprefix --ignore=,$(OF_ANY_VERSION)) tests/tf_plugin tests/every_face $(addprefix tests/common/,schema write layout predicates selection order engine)

# One after the other, because each installs this folder. CI makes them beside work that needs none of them.
environments:
	$(MAKE) -j1 $(VENV_COMMON)/.core-built $(VENV_TF217)/.op-built $(VENV_TF216)/.op-built $(VENV_SPARK)/.op-built $(VENV_TRAINERS)/.installed

# Two processes: TensorFlow takes longer to import than the tests.
test-tf216: $(VENV_TF216)/.op-built
	$(VENV_TF216)/bin/python -m pytest -n 2 --dist worksteal tests/tf_plugin/test_arrow_transport.py tests/common/arrow_stream tests/common/transport/served

# Each process starts a session of Spark, which uses two processors itself.
test-spark: $(VENV_SPARK)/.op-built
	$(VENV_SPARK)/bin/python -m pytest -n 2 --dist worksteal tests/spark "$(EXAMPLE)[trainers/spark_to_torch.py]"

# A file's tests stay in one process, because ranks that train once are the fixture of a whole file; files that take long come
# first. `make test-slow` runs the examples that need nothing of this environment.
ALSO_WITHOUT_TRAINERS := hello_numpy hello_torch windows filters_and_shards trainers/checkpointed_loop trainers/launched_loop trainers/pretraining_loop
EXAMPLE := tests/examples/test_examples.py::test_an_example_runs_and_prints_what_it_promises
test-trainers: $(VENV_TRAINERS)/.installed
	$(VENV_TRAINERS)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(patsubst %,--deselect "$(EXAMPLE)[%.py]",$(ALSO_WITHOUT_TRAINERS)) tests/examples tests/trainers tests/stores

# Wheels: a pure one, and one with the core and the op for each TensorFlow, for any Python (they do not use its ABI).
docs: $(VENV_DOCS)/.installed
	mkdir -p build/docs/parquetry
	ln -sfn $(addprefix $(CURDIR)/,parquetry/__init__.py common tf_plugin torch_plugin) build/docs/parquetry
	NO_MKDOCS_2_WARNING=1 $(VENV_DOCS)/bin/python -m mkdocs build --strict --quiet

dist: $(addsuffix /.op,$(addprefix build/tensorflow-,$(TENSORFLOWS)))
	PARQUETRY_OPS=$(abspath build/ops) $(VENV_DIST)/bin/python -m build --wheel --outdir build/wheel
	PATH=$(abspath $(VENV_DIST)/bin):$$PATH auditwheel repair --exclude 'libtensorflow_framework.so.*' --wheel-dir dist build/wheel/*.whl
	$(VENV_DIST)/bin/twine check --strict dist/*

pure-dist: $(VENV_DIST)/.installed
	rm -rf dist build/wheel build/ops
	PARQUETRY_NATIVE=0 $(VENV_DIST)/bin/python -m build

build/tensorflow-%/.op: pure-dist
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet "$$(echo dist/*-py3-none-any.whl)[tensorflow]" tensorflow==$* $(if $(filter 2.16.% 2.17.%,$*),"pyarrow<21")
	$(@D)/bin/python -m pip install --quiet --force-reinstall --no-deps dist/*-py3-none-any.whl
	cd build && tensorflow-$*/bin/python -m parquetry.tf_plugin.build ops  # not here, where parquetry/ is a folder

check-dist:
	for version in $(TENSORFLOWS); do \
	    python=build/tensorflow-$$version/bin/python; \
	    $$python -m pip install --quiet --force-reinstall --no-deps dist/*manylinux*.whl && \
	    PATH=$(abspath build/tensorflow-$$version/bin) CXX= TF_CPP_MIN_LOG_LEVEL=3 ./$$python tests/wheels/try_wheel.py || exit 1; \
	done

clean:
	rm -rf $(VENV) $(VENV_DIST) $(VENV_AUDIT) $(VENV_COMMON) $(VENV_TF217) $(VENV_TF216) $(BENCH_PEERS) $(VENV_SPARK) $(VENV_TRAINERS) $(VENV_DOCS) build dist *.egg-info tf_plugin/*.so tf_plugin/*.lock common/native/built
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-data bench-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: setup.py pyproject.toml constraints.txt
	$(call new_venv,$(PYTHON),$(VENV))
	$(VENV)/bin/python -m pip install -c constraints.txt -e ".[tensorflow,torch,dev]"
	touch $@

$(VENV_COMMON)/.installed: setup.py pyproject.toml constraints.txt
	$(call new_venv,$(PYTHON),$(VENV_COMMON))
	$(VENV_COMMON)/bin/python -m pip install -c constraints.txt -e ".[test]"
	$(call byte_compile,$(VENV_COMMON))
	touch $@

$(VENV_TF217)/.installed: setup.py pyproject.toml constraints-tf217.txt
	$(call new_venv,$(PYTHON_TF217),$(VENV_TF217))
	$(VENV_TF217)/bin/python -m pip install -c constraints-tf217.txt -e ".[tensorflow-io,test]"
	touch $@

$(VENV_TF216)/.installed: setup.py pyproject.toml constraints-tf216.txt
	$(call new_venv,$(PYTHON_TF216),$(VENV_TF216))
	$(VENV_TF216)/bin/python -m pip install -c constraints-tf216.txt -e ".[tensorflow-io,test]"
	touch $@

$(VENV_SPARK)/.installed: setup.py pyproject.toml constraints-spark.txt
	$(call new_venv,$(PYTHON),$(VENV_SPARK))
	$(VENV_SPARK)/bin/python -m pip install -c constraints-spark.txt -e ".[spark,tensorflow,torch,test]"
	touch $@

$(VENV_TRAINERS)/.installed: setup.py pyproject.toml constraints-trainers.txt
	$(call new_venv,$(PYTHON),$(VENV_TRAINERS))
	$(VENV_TRAINERS)/bin/python -m pip install -c constraints-trainers.txt -e ".[trainers,examples,stores,test]"
	touch $@

$(VENV_DOCS)/.installed: setup.py pyproject.toml constraints-docs.txt
	$(call new_venv,$(PYTHON),$(VENV_DOCS))
	$(VENV_DOCS)/bin/python -m pip install -c constraints-docs.txt -e ".[docs]"
	touch $@

.venv-bench/.installed: benchmarks/peers/bench.txt
.venv-bench-dali/.installed: benchmarks/peers/dali.txt
.venv-bench-mosaic/.installed: benchmarks/peers/mosaic.txt
.venv-bench-petastorm/.installed: benchmarks/peers/petastorm.txt
.venv-bench-tables/.installed: benchmarks/peers/tables.txt
$(addsuffix /.installed,$(BENCH_PEERS)):
	$(call new_venv,$(PYTHON_TF217),$(@D))
	$(@D)/bin/python -m pip install -r $<
	touch $@

# Not an error without a compiler: numpy then does the core's work.
%/.core-built: %/.installed $(CORE)
	-$*/bin/python -m parquetry.common.native.build
	touch $@

%/.op-built: %/.core-built $(KERNELS)
	$*/bin/python -m parquetry.tf_plugin.build
	$(call byte_compile,$*)
	touch $@

$(VENV_DIST)/.installed: constraints-dist.txt
	$(call new_venv,$(PYTHON),$(VENV_DIST))
	$(VENV_DIST)/bin/python -m pip install -r constraints-dist.txt
	touch $@

define new_venv
@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version + "; run: make PYTHON=python3.11 ...")'
test -x $(2)/bin/python || $(1) -m venv $(2)
endef

# An environment with the packages of .venv, and parquetry installed as for a user: not editable.
define user_environment
$(VENV)/bin/python -m venv --without-pip $(1)
$(VENV)/bin/python -c "import sysconfig; print('$(abspath $(2))', sysconfig.get_path('purelib'), sep='\n')" > $$(echo $(1)/lib/python*/site-packages)/parquetry.pth
endef

# As installers do for non-editable packages: a sidecar's processes then start without compiling the package.
define byte_compile
$(1)/bin/python -m compileall -q parquetry common tf_plugin torch_plugin
endef
