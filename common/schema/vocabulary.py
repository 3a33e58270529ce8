"""`Vocabulary`: the distinct values of a field, each with a code, which is its index."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import PipelineError
from ..base.memory.arrow_views import as_numpy
from ..base.process.forks import cached_property, pc
from .plain import plain

_KINDS = {str: pa.large_string(), bytes: pa.large_binary(), int: pa.int64()}
_FEW = 1000  # up to this size, Arrow may build a hash table per batch


class Vocabulary:
    """Strings, bytes or integers, without nulls or duplicates.

    Attributes:
        values: a ``large_string``, ``large_binary``, ``int64`` or ``uint64`` array.
    """

    def __init__(self, values: pa.Array) -> None:
        self.values = values

    @classmethod
    def of(cls, values: Iterable[object], who: str) -> Vocabulary:
        """Builds a vocabulary from Python values. Errors name ``who``.

        Raises:
            PipelineError: there are no values, several types, a null, or a duplicate.
        """
        listed = plain(list(values))
        try:
            kinds = {_KINDS[type(value)] for value in listed}
            (kind,) = kinds
            made = pa.array(listed, kind if kind != pa.int64() or max(listed) < 1 << 63 else pa.uint64())
        except (KeyError, ValueError, OverflowError) as error:
            shown = f"{listed[:5]!r}" + (", ..." if len(listed) > 5 else "")
            raise PipelineError(f"{who}: expected strings, bytes or 64-bit integers, got {shown}.") from error
        if len(pc.unique(made)) < len(made):
            twice = next(value for place, value in enumerate(listed) if value in listed[:place])
            raise PipelineError(f"{who}: expected each value once, got {twice!r} twice.")
        return cls(made)

    @classmethod
    def found_in(cls, parts: Iterable[pa.Array], kind: pa.DataType) -> Vocabulary:
        """Builds a vocabulary of the sorted distinct values of the given arrays, without nulls. Strings sort by code
        point.
        """
        distinct = pc.unique(pa.concat_arrays([pa.array([], kind), *(part.cast(kind) for part in parts)])).drop_null()
        return cls(distinct.take(pc.sort_indices(distinct)))

    def including(self, value: object) -> Vocabulary:
        """Returns the vocabulary with one more value at its end, unless the value is in it, or is ``None``."""
        if value is None or pc.index(self.values, pa.scalar(value, self.values.type)).as_py() >= 0:
            return self
        return Vocabulary(pa.concat_arrays([self.values, pa.array([value], self.values.type)]))

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.values,)

    def codes(self, values: pa.Array) -> np.ndarray:
        """Returns the code of each value, int64 ``[n]``, or -1 if the vocabulary lacks the value.

        Args:
            values: values of the vocabulary's own type, without nulls.
        """
        if len(self) <= _FEW:
            return _numbers(pc.index_in(values, value_set=self.values))
        if pa.types.is_integer(values.type):
            order, known = self._sorted
            place = np.minimum(np.searchsorted(known, as_numpy(values)), len(known) - 1)
            return np.where(known[place] == as_numpy(values), order[place], -1)
        # A hash table of many strings takes longer to build than a batch, so it is kept.
        texts = as_numpy(values).tolist()
        return np.fromiter(map(self._table.get, texts, repeat(-1)), np.int64, len(texts))

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(as_numpy(self.values))
        return order, as_numpy(self.values)[order]

    @cached_property
    def _table(self) -> dict[Any, int]:
        return dict(zip(as_numpy(self.values).tolist(), range(len(self)), strict=True))


def _numbers(found: pa.Array) -> np.ndarray:
    codes: np.ndarray = as_numpy(found.fill_null(-1)).astype(np.int64)
    return codes
