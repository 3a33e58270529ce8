"""Row-group indexes, which record the row groups that contain each value of a field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ....schema.petastorm_metadata import PetastormIndex


class RowGroupIndexerBase:
    """Base class of indexes: build one over the rows of row groups, add indexes together, and look values up."""

    def __init__(self, index_name: str, index_field: str) -> None:
        self._index_name = index_name
        self._column_name = index_field

    @property
    def index_name(self) -> str:
        """The name by which selectors refer to the index."""
        return self._index_name

    @property
    def column_names(self) -> list[str]:
        """The fields that `build_index` reads."""
        return [self._column_name]

    @property
    def indexed_values(self) -> list[Any]:
        """The indexed values."""
        raise NotImplementedError

    def get_row_group_indexes(self, value_key: object = None) -> set[int]:
        """Returns the ordinals of the row groups that contain a value."""
        raise NotImplementedError

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> Any:
        """Adds the rows of one row group; returns the data indexed so far."""
        raise NotImplementedError

    def to_value(self) -> PetastormIndex:
        """Returns the index in a form that can be stored."""
        raise NotImplementedError

    def __add__(self, other: object) -> RowGroupIndexerBase:
        raise NotImplementedError

    def _check_same(self, other: object) -> None:
        if type(other) is not type(self) or other._column_name != self._column_name:
            raise PipelineError(
                f"row-group index '{self._index_name}': expected another {type(self).__name__} of field "
                f"'{self._column_name}' to add, got {other!r}."
            )


class SingleFieldIndexer(RowGroupIndexerBase):
    """For each value of a field (or each element of an array field), the row groups that contain it."""

    def __init__(self, index_name: str, index_field: str) -> None:
        super().__init__(index_name, index_field)
        self._index_data: dict[Any, set[int]] = {}

    @property
    def indexed_values(self) -> list[Any]:
        return list(self._index_data)

    def get_row_group_indexes(self, value_key: object = None) -> set[int]:
        return set(self._index_data.get(value_key, ()))

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> dict[Any, set[int]]:
        for row in decoded_rows:
            for value in _values_in(row[self._column_name]):
                self._index_data.setdefault(value, set()).add(piece_index)
        return self._index_data

    def to_value(self) -> PetastormIndex:
        by_value = {value: frozenset(ordinals) for value, ordinals in self._index_data.items()}
        union: frozenset[int] = frozenset().union(*by_value.values())
        return PetastormIndex(
            name=self._index_name, column=self._column_name, ordinals=union, ordinals_by_value=by_value
        )

    def __add__(self, other: object) -> SingleFieldIndexer:
        self._check_same(other)
        assert isinstance(other, SingleFieldIndexer)
        result = SingleFieldIndexer(self._index_name, self._column_name)
        for part in (self._index_data, other._index_data):
            for value, ordinals in part.items():
                result._index_data.setdefault(value, set()).update(ordinals)
        return result


class FieldNotNullIndexer(RowGroupIndexerBase):
    """The row groups in which a field is not null in at least one row."""

    def __init__(self, index_name: str, index_field: str) -> None:
        super().__init__(index_name, index_field)
        self._index_data: set[int] = set()

    @property
    def indexed_values(self) -> list[Any]:
        return ["Field is Not Null"]

    def get_row_group_indexes(self, value_key: object = None) -> set[int]:
        return set(self._index_data)

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> set[int]:
        if any(row[self._column_name] is not None for row in decoded_rows):
            self._index_data.add(piece_index)
        return self._index_data

    def to_value(self) -> PetastormIndex:
        return PetastormIndex(name=self._index_name, column=self._column_name, ordinals=frozenset(self._index_data))

    def __add__(self, other: object) -> FieldNotNullIndexer:
        self._check_same(other)
        assert isinstance(other, FieldNotNullIndexer)
        result = FieldNotNullIndexer(self._index_name, self._column_name)
        result._index_data = self._index_data | other._index_data
        return result


def indexer_of(index: PetastormIndex) -> RowGroupIndexerBase:
    """Converts a stored index to the form that selectors use."""
    if index.ordinals_by_value is None:
        not_null = FieldNotNullIndexer(index.name, index.column)
        not_null._index_data = set(index.ordinals)
        return not_null
    single = SingleFieldIndexer(index.name, index.column)
    single._index_data = {value: set(ordinals) for value, ordinals in index.ordinals_by_value.items()}
    return single


def _values_in(value: object) -> Iterable[Any]:
    """Returns the plain Python values to index: none for a null, each element of an array."""
    if value is None:
        return ()
    if isinstance(value, np.ndarray):
        return value.ravel().tolist()
    return (value.item() if isinstance(value, np.generic) else value,)
