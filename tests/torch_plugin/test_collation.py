"""`convert` returns what torch's `default_convert` returns, and loaders without a `collate_fn` use it."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, default_convert
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.torch_plugin import ParquetIterable, ParquetPipe, as_is
from parquetry.torch_plugin.collation import convert

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
