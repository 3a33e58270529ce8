"""What SynapseML tests of the module with which it keeps Petastorm alive: its calls, and its patches of other packages.

That module gives numpy and pyarrow names that they have removed, and puts a class of its own in the place of
``pyarrow.parquet.ParquetDataset``, here and in each worker process. With the shim, none of it is needed, and none of it
does harm.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from petastorm import TransformSpec, make_batch_reader, make_reader
from petastorm.codecs import NdarrayCodec, ScalarCodec
from petastorm.etl.dataset_metadata import infer_or_load_unischema
from petastorm.unischema import Unischema, UnischemaField
from petastorm.workers_pool import process_pool
from processes import run_python

pytestmark = pytest.mark.versions
REAL = Path(__file__).parents[1] / "data" / "petastorm" / "0.12.1"
_ARROW_DATASET = pq.ParquetDataset


def pieces(directory: Path, key: str, values: list[Any], rows: int = 4) -> list[str]:
    """Writes a file into each of some partition directories; returns their URLs."""
    urls = []
    for number, value in enumerate(values):
        folder = directory / f"{key}={value}"
        folder.mkdir(parents=True)
        ids = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"id": ids, "value": ids / 2}), folder / "part-0.parquet")
        urls.append(f"file://{folder}/part-0.parquet")
    return urls


class OldPiece:
    """A file of an `OldDataset`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get_metadata(self) -> pq.FileMetaData:
        return pq.ParquetFile(self.path).metadata


class OldDataset:
    """A data set with the attributes that pyarrow 14 had, made of today's."""

    def __init__(self, path_or_paths: Any, filesystem: Any = None, **options: Any) -> None:
        for name in ("validate_schema", "metadata_nthreads", "use_legacy_dataset"):
            options.pop(name, None)
        self.paths = str(path_or_paths).removeprefix("file://")
        self.dataset = _ARROW_DATASET(self.paths, filesystem=filesystem, **options)
        self.fs = self.dataset.filesystem
        self.pieces = [OldPiece(path) for path in self.dataset.files]
        self.schema = self.pieces[0].get_metadata().schema
        self.partitions = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches numpy, pyarrow and the launcher of worker processes."""
    for name, kind in {"bool": bool, "float": float, "string_": np.bytes_, "unicode_": np.str_}.items():
        if name not in np.__dict__:
            monkeypatch.setitem(vars(np), name, kind)  # numpy 1.26 warns of asking for it
    for name in ("filesystem", "hdfs"):
        module = ModuleType(f"pyarrow.{name}")
        module.LocalFileSystem = module.HadoopFileSystem = pafs.LocalFileSystem  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(pa, name, module, raising=False)
    monkeypatch.setattr(pq, "ParquetDataset", OldDataset)
    monkeypatch.setattr(pq, "ParquetDatasetPiece", OldPiece, raising=False)
    monkeypatch.setattr(process_pool, "exec_in_new_process", None, raising=False)


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "doubled_value": np.float64(2 * row["value"])}


DOUBLED = TransformSpec(double, edit_fields=[("doubled_value", np.float64, (), False)])


@pytest.mark.parametrize("is_patched", [False, True])
@pytest.mark.parametrize("pool", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_filters_choose_a_partition(
    tmp_path: Path, request: pytest.FixtureRequest, pool: str, is_patched: bool
) -> None:
    if is_patched:
        request.getfixturevalue("patched")
    pieces(tmp_path, "group", ["a", "b"])
    options = {"reader_pool_type": pool, "workers_count": 1, "num_epochs": 1, "shuffle_row_groups": False}
    with make_batch_reader(tmp_path.as_uri(), filters=[("group", "=", "a")], **options) as reader:
        (batch,) = list(reader)
    assert batch.id.tolist() == [0, 1, 2, 3]
    assert batch.value.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert batch.group.tolist() == ["a"] * 4


@pytest.mark.parametrize("pool", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_row_reader_of_plain_files_transforms(tmp_path: Path, patched: None, pool: str) -> None:
    pieces(tmp_path, "group", ["a"])
    options = {"reader_pool_type": pool, "workers_count": 1, "shuffle_row_groups": False}
    with make_reader(tmp_path.as_uri(), transform_spec=DOUBLED, **options) as reader:
        rows = list(reader)
    assert [(int(row.id), float(row.doubled_value)) for row in rows] == [(i, float(i)) for i in range(4)]


@pytest.mark.parametrize("values", [["a", "b"], [3, 7], ["__HIVE_DEFAULT_PARTITION__", "a"]])
def test_files_of_a_list_have_the_columns_of_the_partitions_around_them(tmp_path: Path, values: list[Any]) -> None:
    urls = pieces(tmp_path, "group", values)
    expected = [None if str(value).startswith("__HIVE") else value for value in values]
    for chosen in (urls, urls[-1:]):
        with make_batch_reader(chosen, shuffle_row_groups=False) as reader:
            batches = list(reader)
            assert isinstance(reader.dataset.paths, list)
        assert [value for batch in batches for value in batch.group.tolist()] == np.repeat(
            np.array(expected[-len(chosen) :], object), 4
        ).tolist()
    with make_batch_reader(urls[0]) as reader:  # one URL, as in Petastorm
        assert "group" not in reader.schema.fields


def test_files_of_a_list_in_unlike_directories_have_no_such_column(tmp_path: Path) -> None:
    urls = [*pieces(tmp_path, "group", ["a"]), *pieces(tmp_path, "kind", ["b"])]
    with make_batch_reader(urls) as reader:
        assert list(reader.schema.fields) == ["id", "value"]


def test_a_null_integer_partition_is_nan_and_no_loader_trains_on_it(tmp_path: Path) -> None:
    pieces(tmp_path, "year", [2025, "__HIVE_DEFAULT_PARTITION__"])
    with make_batch_reader(tmp_path.as_uri(), shuffle_row_groups=False) as reader:
        years = {int(batch.id[0]): batch.year for batch in reader}
    assert (years[0].dtype, years[4].dtype) == (np.int64, np.float64)
    assert np.isnan(years[4]).all()
    with make_reader(tmp_path.as_uri(), shuffle_row_groups=False) as rows:
        assert {row.year for row in rows} == {2025, None}
    pytest.importorskip("torch")
    from petastorm.pytorch import BatchedDataLoader, DataLoader

    for loader in (DataLoader, BatchedDataLoader):
        with (
            loader(make_batch_reader(tmp_path.as_uri()), 4) as batches,
            pytest.raises(TypeError, match="field 'year': Pytorch does not support nulls"),
        ):
            list(batches)


def test_the_schema_of_pyarrows_dataset_is_loaded_or_inferred(tmp_path: Path) -> None:
    pieces(tmp_path, "group", ["a", "b"])
    inferred = infer_or_load_unischema(pq.ParquetDataset(tmp_path))
    assert {field.name: field.numpy_dtype for field in inferred.fields.values()} == {
        "id": np.int64,
        "value": np.float64,
        "group": np.str_,
    }
    declared = infer_or_load_unischema(pq.ParquetDataset(REAL))
    with make_reader(f"file://{REAL}") as reader:
        assert list(declared.fields) == list(infer_or_load_unischema(reader.dataset).fields)
    assert declared.png.shape == (8, 6, 3)


def test_the_schema_of_a_dataset_with_old_attributes_is_inferred(tmp_path: Path, patched: None) -> None:
    """Horovod reads it to learn what an estimator trains on."""
    pq.write_table(pa.table({"id": [1, 2], "value": [0.5, 1.0]}), tmp_path / "part-0.parquet")
    dataset = pq.ParquetDataset(tmp_path.as_uri(), validate_schema=False)
    assert dataset.schema.to_arrow_schema().names == ["id", "value"]
    assert list(infer_or_load_unischema(dataset).fields) == ["id", "value"]


def test_schemas_may_name_the_types_that_numpy_removed(patched: None) -> None:
    fields = [
        UnischemaField("word", np.unicode_, (), ScalarCodec(pa.string()), False),
        UnischemaField("words", np.string_, (None,), NdarrayCodec(), False),
        UnischemaField("flag", np.bool, (), ScalarCodec(pa.bool_()), False),
    ]
    schema = Unischema("Removed", fields)
    assert [field.numpy_dtype for field in schema.fields.values()] == [np.str_, np.bytes_, np.bool]


def test_a_function_by_value_reads_in_a_new_process(tmp_path: Path) -> None:
    """As on an executor: a function arrives as bytes, in a process that has not imported Petastorm."""
    urls = pieces(tmp_path, "group", ["a", "b"])

    def read() -> list[int]:
        import parquetry.petastorm

        parquetry.petastorm.install()
        from petastorm import make_batch_reader

        with make_batch_reader(urls, reader_pool_type="thread", num_epochs=1) as reader:
            return sorted(int(number) for batch in reader for number in batch.id)

    (tmp_path / "function").write_bytes(cloudpickle.dumps(read))
    code = "import pathlib, pickle, sys; print(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())())"
    assert run_python("-c", code, tmp_path / "function", check=True).stdout.split() == str(list(range(8))).split()


SPAWNED = """
import multiprocessing, sys
sys.path.insert(0, {shim!r})
from petastorm import TransformSpec, make_batch_reader

def add(frame):
    frame["value"] = frame["value"] + 1
    return frame

def read(url, results):
    spec = TransformSpec(add)
    with make_batch_reader(url, reader_pool_type="process", workers_count=1, transform_spec=spec) as reader:
        results.put(sorted(float(value) for batch in reader for value in batch.value))

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    results = multiprocessing.Queue()
    process = multiprocessing.Process(target=read, args=(sys.argv[1], results))
    process.start()
    print(results.get(timeout=200))
    process.join()
    read(sys.argv[1], results)
    print(results.get(timeout=200))
"""


@pytest.mark.slow
def test_spawned_programs_read_with_a_pool_of_processes(tmp_path: Path) -> None:
    """The transform is a function of the program's own main module, in its first process and in a spawned one."""
    pieces(tmp_path / "data", "group", ["a"])
    shim = str(Path(__file__).parents[2] / "compat" / "petastorm-shim")
    (tmp_path / "program.py").write_text(SPAWNED.format(shim=shim))
    result = run_python(tmp_path / "program.py", (tmp_path / "data").as_uri(), check=True)
    assert result.stdout.splitlines() == [str([1.0, 1.5, 2.0, 2.5])] * 2
