"""`convert` returns what torch's `default_convert` returns, and loaders without a `collate_fn` use it."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, default_convert
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetPipe, as_is
from parquetry.torch_plugin.collation import convert, stack

Pair = namedtuple("Pair", ["left", "right"])
LEAVES = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([date(2024, 2, 29), Decimal("1.50"), torch.float32, 1.5]),
    st.builds(lambda: torch.arange(3)),
    st.builds(lambda: np.arange(3, dtype=np.int16)),
    st.builds(lambda: np.float32(2)),
    st.builds(lambda: np.str_("text")),
    st.builds(lambda: np.array(["a", "bc"])),
    st.builds(lambda: np.array([None, "b"], object)),
    st.builds(lambda: range(2)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=8,
)


def shown(value: Any) -> Any:
    """Returns the value with all its types, so that two can be compared."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, shown(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), list(map(shown, value))
    return type(value), value


@given(VALUES)
def test_values_are_converted_as_torch_converts_them(value: Any) -> None:
    assert shown(convert(value)) == shown(default_convert(value))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_batches_of_a_loader_do_not_depend_on_who_converts_them(url: str, face: Any, kind: Any, workers: int) -> None:
    def batches(**options: Any) -> list[Any]:
        pipe = face(url, ["id", "drive"]).batch(16).as_tuple("id", "drive")
        return shown(list(kind(pipe, batch_size=None, num_workers=workers, **options)))

    assert batches() == batches(collate_fn=default_convert)
    assert batches() != batches(collate_fn=as_is)  # torch turns tuples into lists


class Foreign(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([np.arange(3)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_only_loaders_of_own_datasets_convert_without_walking_through_strings(
    url: str, kind: Any, workers: int
) -> None:
    for dataset, function in (
        (ParquetIterable(url, ["id", "drive"]).batch(16), convert),
        (ParquetPipe(url, ["id", "drive"]).batch(16), convert),
        (ParquetPipe(url, ["id", "drive"]).batch(16).map(as_is), default_convert),
        (Foreign(), default_convert),
    ):
        iterator = iter(kind(dataset, batch_size=None, num_workers=workers))
        assert iterator._collate_fn is function
        assert next(iterator) is not None
        del iterator


def test_lists_of_strings_are_not_copied() -> None:
    texts = ["a", "b", None]
    assert convert({"texts": texts})["texts"] is texts  # type: ignore[index]


@pytest.mark.parametrize("kind", [ParquetIterable, ParquetPipe, ParquetMap])
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_torch_cannot_stack_name_the_field_and_what_to_write(tmp_path: Path, kind: Any, workers: int) -> None:
    pq.write_table(pa.table({"id": range(6), "l": [[1] * (row % 3) for row in range(6)]}), tmp_path / "rows.parquet")
    dataset = kind(str(tmp_path / "rows.parquet"))
    with pytest.raises(
        PipelineError,
        match=r"field 'l': expected rows of one shape, which DataLoader\(batch_size=4\) can stack, got \(0,\) and \(1,\)\. "
        r"Write dataset\.pad\('l'\)\.batch\(4\) and DataLoader\(dataset, batch_size=None\)\.",
    ) as error:
        list(DataLoader(dataset, batch_size=4, num_workers=workers))
    assert "collation.py" not in str(error.value)  # what a worker says shows no frame of ours
    first, _ = DataLoader(dataset.pad("l").batch(4), batch_size=None)
    assert first["l"].tolist() == [[0, 0], [1, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{0: {"x": torch.zeros(1)}}, {0: {"x": torch.zeros(2)}}], "'x'"),
        ([(torch.zeros(1), torch.zeros(1)), (torch.zeros(1), torch.zeros(2))], "1"),
        ([{"tags": ["a"]}, {"tags": ["a", "b"]}], "'tags'"),
    ],
)
def test_a_field_that_cannot_be_stacked_is_looked_for_in_windows_and_tuples(rows: list[Any], field: str) -> None:
    with pytest.raises(PipelineError, match=rf"field {field}: expected rows of one shape"):
        stack(rows)


def test_other_errors_of_torch_stay_unchanged() -> None:
    with pytest.raises(TypeError, match="must contain tensors"):
        stack([{"x": object()}])
    with pytest.raises(RuntimeError, match=r"sparse|stack|Could not run"):
        stack([{"x": torch.zeros(2).to_sparse()}, {"x": torch.zeros(2)}])


class First:
    """A function that takes the first row, and that no dict can hold."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, rows: list[Any]) -> Any:
        return rows[0]


def test_a_function_of_yours_is_used_as_it_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(4)}), tmp_path / "rows.parquet")
    loader = DataLoader(ParquetIterable(str(tmp_path / "rows.parquet")), batch_size=2, collate_fn=First())
    assert [int(row["id"]) for row in loader] == [0, 2]
