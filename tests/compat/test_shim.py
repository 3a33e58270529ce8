"""`install`, and the distribution in ``compat/petastorm-shim``: what ``import petastorm`` imports, and when."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases import every_case
from processes import run_python

import parquetry
from parquetry.common.compat.petastorm.module_names import HOMES, INTERNAL
from parquetry.common.compat.petastorm.unischema import Unischema

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "compat" / "petastorm-shim"
REAL = ROOT / "tests" / "data" / "petastorm" / "0.12.1"
PROGRAM = """
from petastorm import make_reader
with make_reader(__import__("sys").argv[1], schema_fields=["id"]) as reader:
    print(sorted(int(row.id) for row in reader) == list(range(60)))
"""


def run(code: str, *arguments: object, path: Path | None = SHIM) -> list[str]:
    """Runs a program with the distribution on its path; returns the lines that it prints."""
    paths = filter(None, [str(path or ""), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    return run_python("-W", "error", "-c", code, *arguments, env=environment, check=True).stdout.splitlines()


def test_a_program_that_only_names_petastorm_runs() -> None:
    assert run(PROGRAM, REAL) == ["True"]


def test_a_program_may_install_the_names_itself() -> None:
    code = "import parquetry.petastorm; parquetry.petastorm.install(); parquetry.petastorm.install()" + PROGRAM
    assert run(code, REAL, path=None) == ["True"]


def test_each_name_is_imported_when_it_is_used() -> None:
    code = """
import sys
import petastorm
from petastorm.codecs import ScalarCodec
import petastorm.etl.dataset_metadata, petastorm.spark, petastorm.predicates as predicates
frameworks = {"torch", "tensorflow", "pandas", "pyspark"}
print(petastorm.__version__, frameworks & sys.modules.keys())
print("parquetry.common.compat.petastorm.weighted_sampling_reader" in sys.modules, "petastorm.ngram" in sys.modules)
print(petastorm.ngram.NGram.__module__, petastorm.spark.SparkDatasetConverter.__name__)
import parquetry.petastorm.unischema
print(petastorm.unischema is parquetry.petastorm.unischema, petastorm.unischema.__spec__.name)
"""
    assert run(code) == [
        "0.13.1 set()",
        "True False",  # the first is part of Petastorm's own first level
        "parquetry.common.compat.petastorm.ngram SparkDatasetConverter",
        "True parquetry.common.compat.petastorm.unischema",
    ]


@every_case("name", {name: name for name in HOMES})
def test_every_name_leads_to_its_module(name: str) -> None:
    for name_, framework in (("pytorch", "torch"), ("tf_utils", "tensorflow"), ("fs_utils", "fsspec")):
        if name == name_ and find_spec(framework) is None:
            return
    home = importlib.import_module(HOMES[name])
    assert importlib.import_module(f"petastorm.{name}") is home
    assert importlib.import_module(f"parquetry.petastorm.{name}") is home
    assert home.__spec__ is not None
    assert home.__spec__.name == HOMES[name]


def test_every_module_of_a_package_has_a_name() -> None:
    folder = ROOT / "common" / "compat" / "petastorm"
    packages = sorted(path.parent for path in folder.glob("*/__init__.py"))
    modules = {f"{path.parent.name}.{path.stem}" for package in packages for path in package.glob("[!_]*.py")}
    assert modules | {package.name for package in packages} <= HOMES.keys()


def test_internal_modules_are_refused_with_the_page_that_says_what_to_use() -> None:
    for name in sorted(INTERNAL):
        with pytest.raises(ModuleNotFoundError, match=rf"petastorm\.{name}: an internal module .*migrating"):
            importlib.import_module(f"petastorm.{name}")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'petastorm\.nothing'"):
        importlib.import_module("petastorm.nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from petastorm import nothing")


def test_a_loaded_petastorm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "petastorm").mkdir()
    (tmp_path / "petastorm" / "__init__.py").write_text("")
    code = """
import parquetry.petastorm, petastorm
try:
    parquetry.petastorm.install()
except ImportError as error:
    print(error)
print(petastorm.__file__)
"""
    refused, kept = run(code, path=tmp_path)
    place = tmp_path / "petastorm" / "__init__.py"
    assert refused.startswith(
        f"parquetry.petastorm.install: petastorm is already imported, from {place}. Call install()"
    )
    assert kept == str(place)


def test_tools_run_as_modules() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SHIM), os.environ.get("PYTHONPATH", "")])}
    result = run_python("-m", "petastorm.tools.copy_dataset", "--help", env={**environment, "PYTHONSAFEPATH": "1"})
    assert "--overwrite-output" in result.stdout, result.stderr


@pytest.mark.slow
def test_worker_processes_import_petastorm_too(tmp_path: Path) -> None:
    (tmp_path / "users_transform.py").write_text("from petastorm import TransformSpec\ndef keep(row): return row\n")
    code = """
import sys
sys.path.insert(0, sys.argv[2])
import parquetry.petastorm
parquetry.petastorm.install()
from petastorm import TransformSpec, make_reader
import users_transform
spec = TransformSpec(users_transform.keep)
with make_reader(sys.argv[1], ["id"], reader_pool_type="process", workers_count=1, transform_spec=spec) as reader:
    print(len(list(reader)))
"""
    assert run(code, REAL, tmp_path, path=None) == ["60"]


def test_the_distribution_satisfies_what_others_require() -> None:
    packaging: Any = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((SHIM / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in ("petastorm>=0.12", "petastorm==0.13.1", "petastorm<1,>=0.11.3"):
        requirement = packaging.Requirement(text)
        assert requirement.name == project["name"]
        assert project["version"] in requirement.specifier
    for script in project["scripts"].values():
        module, name = script.split(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.slow
def test_a_new_environment_with_the_wheel_runs_a_program(tmp_path: Path) -> None:
    """Installs by hand what pip installs, because tests have no network: a wheel is an archive to unpack."""
    build = "import sys, setuptools.build_meta as m; print(m.build_wheel(sys.argv[1]))"
    source = tmp_path / "source"
    (source / "petastorm").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "petastorm/__init__.py"):
        (source / name).write_bytes((SHIM / name).read_bytes())
    pytest.importorskip("setuptools", minversion="77")
    run_python("-c", build, tmp_path, cwd=source, check=True)
    environment = tmp_path / "environment"
    run_python("-m", "venv", "--without-pip", environment, check=True)
    packages = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    with zipfile.ZipFile(next(tmp_path.glob("petastorm-*.whl"))) as wheel:
        wheel.extractall(packages)
    paths = [path for path in sys.path if path and Path(path).resolve() != SHIM]
    (packages / "others.pth").write_text("\n".join(paths))
    (packages / "parquetry").mkdir()
    for path in Path(parquetry.__file__ or "").parent.glob("*.py"):
        (packages / "parquetry" / path.name).symlink_to(path)
    for name in ("common", "tf_plugin", "torch_plugin"):  # an editable installation has them elsewhere
        spec = find_spec(f"parquetry.{name}")
        assert spec is not None
        (packages / "parquetry" / name).symlink_to(next(iter(spec.submodule_search_locations or ())))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = f"{PROGRAM}\nfrom importlib.metadata import version\nprint(version('petastorm'))"
    command = [environment / "bin" / "python", "-c", code, REAL]
    result = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["True", "0.13.1+parquetry"], result.stderr


def test_pickles_name_modules_that_are_always_there() -> None:
    from petastorm.unischema import Unischema as Named

    assert Named is Unischema
    assert Named.__module__ == "parquetry.common.compat.petastorm.unischema"
