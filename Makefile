# Every target does its own set-up: a virtual environment, pinned packages, and the TensorFlow op. Set-up runs again only
# when setup.py, pyproject.toml or the pins change (the op: when its sources change).
#
#   make demo         writes a real dataset, trains a Keras and a torch model from it
#   make test         the whole test suite, both frameworks installed; PYTEST="-n logical -m 'not slow'" for most of it
#   make check        ruff, mypy, and the order of the rooms
#   make bench        every workload against the machine's limit and the installed peers; BENCH="--profile full" for more
#   make bench-quick  shuffled JPEG batches against the decoder's own limit, about a minute
#   make bench-peers  environments with what `make bench` compares with; without them their cells stay blank
#   make test-common  the suite of common, in an environment with neither framework
#   make test-tf217   the suite of the TensorFlow face, with TensorFlow 2.17, numpy 1.26 and pyarrow 18
#   make test-tf216   Arrow streams read by tensorflow-io, with TensorFlow 2.16, the one that it can be run with
#   make test-trainers  the trainers of others over PyTorch: Accelerate, the Hugging Face Trainer, Lightning
#   make test-spark   the suite of the Spark support, with pyspark 4 and both frameworks; needs Java 17 or newer
#   make clean        removes everything that the targets made

PYTHON ?= python3
PYTHON_TF217 ?= $(PYTHON)
PYTHON_TF216 ?= $(PYTHON_TF217)

VENV := .venv
VENV_COMMON := .venv-common
VENV_TF217 := .venv-tf217
VENV_TF216 := .venv-tf216
VENV_SPARK := .venv-spark
VENV_TRAINERS := .venv-trainers
BENCH_PEERS := .venv-bench .venv-bench-mosaic .venv-bench-petastorm
BENCH ?=
# One test process for each processor; PYTEST="-n 0" runs the tests in one.
PYTEST ?= -n logical --dist worksteal
KERNELS := $(wildcard tf_plugin/kernels/*) tf_plugin/build.py

.PHONY: demo test check bench bench-quick bench-peers test-common test-tf217 test-tf216 test-spark test-trainers clean
.DELETE_ON_ERROR:

demo: $(VENV)/.op-built
	$(VENV)/bin/python examples/demo.py

test: $(VENV)/.op-built
	$(VENV)/bin/python -m pytest $(PYTEST)

check: $(VENV)/.installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	rm -rf build
	$(VENV)/bin/python -m pip install --quiet --no-deps --target build/installed .
	cd build/installed && ../../$(VENV)/bin/python -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p parquetry
	cd build/installed && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --no-cache

bench: $(VENV)/.op-built
	$(VENV)/bin/python -m benchmarks.run $(BENCH)

bench-quick: $(VENV)/.op-built
	$(VENV)/bin/python -m benchmarks.run --name quick --workloads a --contenders threads,sidecar,tf-eager,pipe,pipe-loader

bench-peers: $(addsuffix /.installed,$(BENCH_PEERS)) $(VENV_TF217)/.installed

test-common: $(VENV_COMMON)/.installed
	$(VENV_COMMON)/bin/python -c "from importlib.util import find_spec; assert not (find_spec('tensorflow') or find_spec('torch'))"
	$(VENV_COMMON)/bin/python -m pytest $(PYTEST) tests/common tests/every_face

test-tf217: $(VENV_TF217)/.op-built
	$(VENV_TF217)/bin/python -m pytest $(PYTEST) tests/tf_plugin tests/every_face $(addprefix tests/common/,schema write layout predicates selection engine transport/served arrow_stream pipeline/test_resume.py)

test-tf216: $(VENV_TF216)/.op-built
	$(VENV_TF216)/bin/python -m pytest $(PYTEST) tests/tf_plugin/test_arrow_transport.py tests/common/arrow_stream tests/common/transport/served

test-spark: $(VENV_SPARK)/.op-built
	$(VENV_SPARK)/bin/python -m pytest $(PYTEST) tests/spark

test-trainers: $(VENV_TRAINERS)/.installed
	$(VENV_TRAINERS)/bin/python -m pytest tests/trainers

clean:
	rm -rf $(VENV) $(VENV_COMMON) $(VENV_TF217) $(VENV_TF216) $(BENCH_PEERS) $(VENV_SPARK) $(VENV_TRAINERS) build dist *.egg-info tf_plugin/*.so tf_plugin/*.lock
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
	$(VENV_TRAINERS)/bin/python -m pip install -c constraints-trainers.txt -e ".[trainers,test]"
	touch $@

.venv-bench/.installed: benchmarks/peers/bench.txt
.venv-bench-mosaic/.installed: benchmarks/peers/mosaic.txt
.venv-bench-petastorm/.installed: benchmarks/peers/petastorm.txt
$(addsuffix /.installed,$(BENCH_PEERS)):
	$(call new_venv,$(PYTHON_TF217),$(@D))
	$(@D)/bin/python -m pip install -r $<
	touch $@

%/.op-built: %/.installed $(KERNELS)
	$*/bin/python -m parquetry.tf_plugin.build
	$(call byte_compile,$*)
	touch $@

define new_venv
@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version + "; run: make PYTHON=python3.11 ...")'
test -x $(2)/bin/python || $(1) -m venv $(2)
endef

# As an installer does for what is not editable: a sidecar's processes then start without compiling the package.
define byte_compile
$(1)/bin/python -m compileall -q parquetry common tf_plugin torch_plugin
endef
