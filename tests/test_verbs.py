"""Checks every verb on every face: one method, one docstring, one working example."""

from __future__ import annotations

import doctest
import inspect
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cases import every_case
from drive_rows import write_drive

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.pipeline.verbs import Verbs
from parquetry.common.stages.base import kinds

METHODS = {"where_column": "where", "where_function": "where", "shard_row_groups": "shard"}
"""Kinds of stages that share a method with another kind."""
SHORTHANDS = {"balance", "fixed", "hash_split"}
"""Methods that create another verb's stage."""
VERBS = sorted({METHODS.get(kind, kind) for kind in kinds()} | SHORTHANDS)
FACES: dict[str, tuple[str, set[str]]] = {
    "Pipeline": ("common", set()),
    "ParquetIterable": ("torch_plugin", {"shard"}),  # by a mesh or a process group
    "ParquetMap": ("torch_plugin", {"shard"}),
    "ParquetNode": ("torch_plugin", {"shard"}),
    "ParquetPipe": ("torch_plugin", {"shard", "shuffle", "batch", "concat"}),  # or torch's own DataPipe
    "ParquetDataset": ("tf_plugin", {"shard", "shuffle", "batch", "cache", "repeat", "take", "skip"}),  # or tf.data's
}
"""Each face with its package, and the verbs that also have another meaning in its framework."""
FRAMEWORKS = {"common": "numpy", "tf_plugin": "tensorflow", "torch_plugin": "torch"}


def face_named(name: str) -> Any:
    """Returns the class; skips if its framework is not installed."""
    package = FACES[name][0]
    if find_spec(FRAMEWORKS[package]) is None:
        pytest.skip("its framework is not installed")
    return getattr(import_module(f"parquetry.{package}"), name)


def test_every_stage_has_its_method_and_every_method_its_stage() -> None:
    methods = {name for base in Verbs.__mro__[:-1] for name in vars(base) if not name.startswith("_")}
    assert sorted(methods) == VERBS


@every_case("verb", VERBS)
@pytest.mark.parametrize("face", FACES)
def test_every_face_has_every_verb_with_one_signature_and_one_docstring(face: str, verb: str) -> None:
    shared, found = getattr(Verbs, verb), getattr(face_named(face), verb)
    if verb not in FACES[face][1]:
        assert inspect.unwrap(found) is inspect.unwrap(shared)
        assert inspect.signature(found) == inspect.signature(shared)
        assert found.__doc__ == shared.__doc__
        return
    assert inspect.unwrap(found) is not shared, "it is no longer the face's own"
    assert found.__doc__
    own, wanted = (list(inspect.signature(method).parameters) for method in (found, shared))
    assert len(own) >= len(wanted)
    if face != "ParquetDataset":  # which has tf.data's names
        assert set(wanted) <= set(own)


@pytest.mark.parametrize("face", FACES)
def test_every_face_describes_itself_and_takes_options(face: str) -> None:
    missing = {"describe", "explain", "vocabulary", "with_options"} - {*dir(face_named(face))}
    assert not missing


def test_every_verb_that_tf_data_lacks_is_a_function_for_apply() -> None:
    dataset = face_named("ParquetDataset")
    functional = import_module("parquetry.tf_plugin.functional")
    own = FACES["ParquetDataset"][1] - {"shard", "shuffle", "cache"}
    missing = [verb for verb in VERBS if verb not in own and not callable(getattr(functional, verb, None))]
    assert missing == []
    package = import_module("parquetry.tf_plugin")
    assert package.rename is functional.rename
    with pytest.raises(AttributeError, match="has no attribute 'renamed'"):
        _ = package.renamed
    assert functional.select.__doc__ == "Like `ParquetDataset.select`."
    assert hasattr(dataset, "apply")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Names available to docstring examples."""
    directory = Path(tmp_path_factory.mktemp("verbs"))
    drive = Pipeline(write_drive(directory))
    tokens = pa.array([[n] * (n % 4) for n in range(40)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), directory / "texts.parquet", row_group_size=9)
    pq.write_table(pa.table({"codes": [[1, None], [], [3]]}), directory / "gaps.parquet")
    pq.write_table(pa.table({"boxes": [[[1, 2], [3]], [[], [4, 5, 6]]]}), directory / "boxes.parquet")
    files = {name: Pipeline(directory / f"{name}.parquet") for name in ("texts", "gaps", "boxes")}
    return {"drive": drive, **files, "np": np, "pc": pc, "tempfile": tempfile, "UnischemaField": UnischemaField}


@every_case("verb", VERBS)
def test_the_example_in_each_docstring_gives_what_it_says(names: dict[str, Any], verb: str) -> None:
    check_example(getattr(Verbs, verb), names)
    assert "Raises:" in (getattr(Verbs, verb).__doc__ or "")


@pytest.mark.parametrize("method", [Pipeline.map, Pipeline.filter, Pipeline.describe])
def test_the_examples_of_aliases_and_of_describe_give_what_they_say(names: dict[str, Any], method: Any) -> None:
    check_example(method, names)


@pytest.mark.parametrize("face", ["ParquetIterable", "ParquetMap", "ParquetNode"])
def test_torch_classes_without_map_and_filter_of_their_own_have_those_of_a_pipeline(
    names: dict[str, Any], face: str
) -> None:
    drive = names["drive"].select("id")
    mapped = face_named(face).from_pipeline(drive).filter([("id", "<", 3)]).map(_doubled)
    assert mapped.pipeline == drive.where([("id", "<", 3)]).transform(_doubled)
    if face == "ParquetIterable":
        assert [int(row["id"]) for row in mapped.with_options(executor="threads")] == [0, 2, 4]


def _doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "id": 2 * row["id"]}


def check_example(method: Any, names: dict[str, Any]) -> None:
    """Checks that the example in a docstring gives what it shows."""
    text = inspect.getdoc(method) or ""
    example = doctest.DocTestParser().get_doctest(text, dict(names), method.__name__, None, 0)
    assert example.examples, "expected an example in the docstring"
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)
