"""The project as a whole: public names, import rules, pins, and text that no file may contain."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.abc import MetaPathFinder
from importlib.metadata import packages_distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from processes import run_python

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "common": [
        "CompressedImageCodec",
        "CompressedNdarrayCodec",
        "DatasetWriter",
        "NdarrayCodec",
        "Pipeline",
        "ScalarCodec",
        "TensorCodec",
        "Unischema",
        "UnischemaField",
        "mix",
        "write_dataset",
    ],
    "tf_plugin": ["ParquetDataset"],
    "torch_plugin": ["ParquetIterable", "ParquetMap", "ParquetNode", "ParquetPipe"],
}
FRAMEWORKS = {"tf_plugin": {"tensorflow", "keras"}, "torch_plugin": {"torch", "torchdata"}}


def installed(package: str) -> bool:
    """Whether the frameworks of a package are installed."""
    return all(find_spec(name) for name in FRAMEWORKS.get(package, ()))


@functools.cache
def sources(folder: str) -> list[tuple[Path, ast.Module]]:
    """Parses every module under a folder of the repository."""
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted((ROOT / folder).rglob("*.py"))]


def absolute_imports(tree: ast.Module) -> Iterator[str]:
    """Returns the dotted names of all absolute imports, including those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def relative_imports(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Returns the targets of relative imports, as paths without suffix."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1]
            if node.module:
                yield base.joinpath(*node.module.split("."))
            else:
                yield from (base / alias.name for alias in node.names)


def imported_files(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Returns the modules named by relative imports anywhere, without names that a package re-exports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                yield from filter(Path.exists, (base / f"{alias.name}.py", base.with_suffix(".py")))


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_can_be_imported_and_are_listed_in_order(package: str) -> None:
    if not installed(package):
        pytest.skip("its framework is not installed")
    module = importlib.import_module(f"parquetry.{package}")
    assert list(module.__all__) == sorted(module.__all__)
    assert set(PACKAGES[package]) <= set(module.__all__)
    assert not [name for name in module.__all__ if name.startswith("_")]
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


def test_every_public_name_is_in_the_top_package() -> None:
    import parquetry

    listed = [name for package in PACKAGES for name in PACKAGES[package]]
    assert list(parquetry.__all__) == sorted(parquetry.__all__)
    assert {*listed, *parquetry.__all__} <= set(dir(parquetry))
    assert {*PACKAGES["common"]} <= set(parquetry.__all__)
    for package in filter(installed, PACKAGES):
        home = importlib.import_module(f"parquetry.{package}")
        for name in PACKAGES[package]:
            assert getattr(parquetry, name) is getattr(home, name)
    assert parquetry.__version__ == version("parquetry")
    with pytest.raises(AttributeError, match="has no attribute 'Pipelines'"):
        _ = parquetry.Pipelines


def test_the_top_package_is_cheap_and_completes_to_public_names() -> None:
    code = """
import sys, parquetry, parquetry.common
print(sorted({"importlib.metadata", "numpy", "pyarrow", "rich", "tensorflow", "torch", "typer"} & set(sys.modules)))
print(set(dir(parquetry)) > set(parquetry.__all__), dir(parquetry.common) == parquetry.common.__all__)
"""
    result = run_python("-c", code)
    assert result.stdout.splitlines() == ["[]", "True True"], result.stderr


def test_everything_of_the_top_package_is_imported_without_a_framework() -> None:
    code = """
import sys
for name in ("ray", "tensorflow", "torch"):
    sys.modules[name] = None
from parquetry import *
import parquetry
print(Pipeline.__name__, sorted({*dir(parquetry)} - {*dir()}))
"""
    result = run_python("-c", code)
    faces = ["NestedTensors", "ParquetDataset", "ParquetIterable", "ParquetMap", "ParquetNode", "ParquetPipe"]
    assert result.stdout.split(maxsplit=1) == [
        "Pipeline",
        f"{[*faces, 'ParquetrySource', '__version__']}\n",
    ], result.stderr


def test_the_top_package_loads_no_framework_and_names_the_extra_that_is_missing() -> None:
    code = """
import sys
for name in ("ray", "tensorflow", "torch"):
    sys.modules[name] = None
from parquetry import Pipeline
for name in ("ParquetDataset", "ParquetPipe", "ParquetrySource"):
    try:
        getattr(__import__("parquetry"), name)
    except ImportError as error:
        print(error)
"""
    result = run_python("-c", code)
    assert result.stdout.splitlines() == [
        "parquetry.ParquetDataset needs tensorflow, which is not installed. "
        "Install it with: pip install 'parquetry[tensorflow]'",
        "parquetry.ParquetPipe needs torch, which is not installed. Install it with: pip install 'parquetry[torch]'",
        "parquetry.ParquetrySource needs ray, which is not installed. Install it with: pip install 'parquetry[ray]'",
    ], result.stderr


@pytest.mark.parametrize(
    ("package", "absent", "statement"),
    [
        ("tensorflow", "tensorflow", "from parquetry.tf_plugin import ParquetDataset"),
        ("tensorflow", "tensorflow", "import parquetry.tf_plugin.keras"),
        ("torch", "torch", "import parquetry.torch_plugin"),
        ("torch", "torchdata", "from parquetry import ParquetNode"),
    ],
)
def test_a_missing_framework_names_its_extra_and_a_broken_one_its_own_error(
    package: str, absent: str, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = "parquetry.tf_plugin" if package == "tensorflow" else "parquetry.torch_plugin"
    kept = [name for name in sys.modules if name.startswith(face) or name == "parquetry"]
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    if absent == "torchdata" and not installed("torch_plugin"):
        pytest.skip("torch is not installed")

    class Finder(MetaPathFinder):
        """Finds the framework before any other finder, and fails."""

        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == absent:
                raise failure

    for name in [name for name in sys.modules if name.partition(".")[0] == absent]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    failure: ImportError = ModuleNotFoundError(f"No module named '{absent}'", name=absent)
    with pytest.raises(ModuleNotFoundError, match=rf"{absent}, .* pip install 'parquetry\[{package}\]'"):
        exec(statement)
    for failure in (ImportError("libcudart.so.12: cannot open"), ModuleNotFoundError(name=f"{absent}._C")):
        with pytest.raises(ImportError) as raised:
            exec(statement)
        assert raised.value is failure


def test_public_classes_are_native_to_their_framework() -> None:
    if not installed("tf_plugin") or not installed("torch_plugin"):
        pytest.skip("needs both frameworks")
    import tensorflow as tf
    from torch.utils.data import IterDataPipe
    from torchdata.nodes import BaseNode

    from parquetry.tf_plugin import ParquetDataset
    from parquetry.torch_plugin import ParquetNode, ParquetPipe

    assert issubclass(ParquetDataset, tf.data.Dataset)
    assert issubclass(ParquetPipe, IterDataPipe)
    assert issubclass(ParquetNode, BaseNode)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_framework_but_its_own(package: str) -> None:
    forbidden = set().union(*(names for owner, names in FRAMEWORKS.items() if owner != package))
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in sources(package)
        for name in absolute_imports(tree)
        if name.split(".")[0] in forbidden
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_import_each_other(package: str) -> None:
    """Lazy and type-only imports count: readers must be able to read a file's foundations first."""
    imported = {path: set(imported_files(path, tree)) - {path} for path, tree in sources(package)}
    TopologicalSorter(imported).prepare()


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_relative_inside_a_package_and_absolute_across(package: str) -> None:
    wrong = []
    for path, tree in sources(package):
        for name in absolute_imports(tree):
            top, _, rest = name.partition(".")
            bare = top in PACKAGES  # a module called "common" exists only in the repository
            foreign = top == "parquetry" and rest.split(".")[0] != "common"
            if bare or foreign or name.startswith(f"parquetry.{package}"):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
        for target in relative_imports(path, tree):
            if not target.is_relative_to(ROOT / package):
                wrong.append(f"{path.relative_to(ROOT)}: {target}")
    assert wrong == []


def test_common_works_where_neither_framework_can_be_imported() -> None:
    code = """
import sys
for name in ("tensorflow", "keras", "torch", "torchdata"):
    sys.modules[name] = None
import importlib, pkgutil
import parquetry.common
for module in pkgutil.walk_packages(parquetry.common.__path__, "parquetry.common."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in parquetry.common.__all__:
    getattr(parquetry.common, name)
print("imported")
"""
    result = run_python("-c", code)
    assert (result.stdout.strip(), result.returncode) == ("imported", 0), result.stderr


@pytest.mark.slow
def test_the_base_requirements_are_enough_to_write_and_read() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        base = tomllib.load(file)["project"]["dependencies"]
    assert len(base) <= 7
    required, waiting = set(), [Requirement(text) for text in base]
    while waiting:
        requirement = waiting.pop()
        if requirement.name not in required and (requirement.marker is None or requirement.marker.evaluate()):
            required.add(canonical(requirement.name))
            waiting += [each for each in map(Requirement, requires(requirement.name) or []) if "extra" not in str(each)]
    absent = [
        module
        for module, owners in packages_distributions().items()
        if module != "parquetry" and not required & set(map(canonical, owners))
    ]
    assert {"pandas", "rich", "tenacity", "typer"} <= set(absent)
    result = run_python("-c", f"absent = {set(absent)!r}\n{BASE_PROGRAM}")
    assert result.stdout.splitlines() == [
        "[('deltalake', 'tables.delta_storage'), ('libcst', 'apps.tools'), ('typer', 'apps.command')]",
        "[0, 1, 2, 3]",
        "parquetry: the command parquetry needs typer, which is not installed. "
        "Install it with: pip install 'parquetry[cli]'",
        "store.parquet: a store needs tenacity, which is not installed. Run: pip install 'parquetry[remote]'",
        "TFRecord needs google_crc32c, which is not installed. Run: pip install 'parquetry[tfrecord]'",
    ], result.stderr


BASE_PROGRAM = """
import contextlib, importlib, io, pkgutil, sys, tempfile
class Finder:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
import parquetry.common
from parquetry.common.base.errors import CodecUnavailableError
from parquetry import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
optional = set()  # the rooms whose modules need more, and what they need
for module in pkgutil.walk_packages(parquetry.common.__path__, "parquetry.common.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except (ModuleNotFoundError, CodecUnavailableError) as error:
            missing = error.__cause__ or error
            optional.add((missing.name.partition(".")[0], ".".join(module.name.split(".")[2:4])))
print(sorted(optional))
image = UnischemaField("image", "uint8", (4, 4, 3), CompressedImageCodec("jpeg"))
schema = Unischema("rows", [UnischemaField("id", "int64"), image, UnischemaField("text", "str")])
rows = [{"id": n, "image": [[[n] * 3] * 4] * 4, "text": str(n)} for n in range(4)]
with tempfile.TemporaryDirectory() as url:
    write_dataset(url, schema, rows)
    batches = list(Pipeline(url).shuffle(4, seed=1).batch(2))
    print(sorted(number for batch in batches for number in batch["id"].tolist()))
from parquetry.__main__ import main
from parquetry.common.apps.tools.tfrecord import tfrecord_rows
from parquetry.common.storage.retries import with_retries
import pyarrow.fs
with contextlib.redirect_stderr(sys.stdout), contextlib.suppress(SystemExit):
    main()
for attempt in (
    lambda: with_retries(pyarrow.fs._MockFileSystem(), lambda: 1, "store.parquet"),
    lambda: list(tfrecord_rows(io.BytesIO(b"x"), "x")),
):
    try:
        attempt()
    except parquetry.common.ParquetryError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "absent"), [("tf_plugin", ("torch", "torchdata")), ("torch_plugin", ("tensorflow", "keras"))]
)
def test_a_plugin_does_not_try_to_import_the_other_framework(package: str, absent: tuple[str, ...]) -> None:
    if not installed(package):
        pytest.skip("its framework is not installed")
    code = f"""
import sys
tried = []
class Finder:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {absent!r}:
            tried.append(name)
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Finder())
import parquetry.{package} as package
for name in package.__all__:
    getattr(package, name)
print(tried)
"""
    result = run_python("-c", code)
    assert (result.stdout.strip(), result.returncode) == ("[]", 0), result.stderr


def test_every_direct_dependency_is_pinned() -> None:
    files = sorted(ROOT.glob("constraints*.txt"))  # one per CI environment
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    pinned = {canonical(line.split("==")[0]) for line in lines if "==" in line}
    direct = {canonical(re.split(r"[^\w.-]", text)[0]) for text in requires("parquetry") or []}
    assert direct - {"parquetry"} - pinned == set()


def test_no_file_names_a_package_host_or_a_path_of_one_machine() -> None:
    hosts = ["pypi" + ".org", "python" + "hosted", "--" + "index-url", "--" + "extra-index", "--" + "find-links"]
    paths = [f"(?<![\\w.:~])/{folder}/" for folder in ("work", "home", "root", "Users", "opt", "mnt")]
    pattern = re.compile("|".join([*map(re.escape, hosts), *paths]))
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{path.relative_to(ROOT)}: {match}" for match in pattern.findall(text)]
    assert wrong == []


def tracked_files() -> list[Path]:
    """Returns the files tracked by git; skips outside a git checkout."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def canonical(name: str) -> str:
    """Normalizes a distribution's name as package indexes do (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


@pytest.mark.parametrize(
    ("public", "home"),
    [
        ("errors", "common.base.errors"),
        ("petastorm", "common.compat.petastorm"),
        ("petastorm.etl.dataset_metadata", "common.compat.petastorm.etl.dataset_metadata"),
        ("petastorm.unischema", "common.compat.petastorm.unischema"),
        ("spark", "common.compat.spark"),
        ("testing", "common.apps.testing"),
    ],
)
def test_public_modules_have_the_names_of_their_homes(public: str, home: str) -> None:
    code = f"""
import importlib
public = importlib.import_module("parquetry.{public}")
home = importlib.import_module("parquetry.{home}")
print([name for name in getattr(public, "__all__", dir(public)) if getattr(public, name) is not getattr(home, name)])
"""
    result = run_python("-c", code)
    assert result.stdout.strip() == "[]", result.stderr
