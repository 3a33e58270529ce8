"""Row-group selectors, which choose the row groups to read by the indexes stored with the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class RowGroupSelectorBase:
    """Base class of selectors."""

    def get_index_names(self) -> Iterable[str]:
        """Returns the names of the indexes that the selector uses."""
        raise NotImplementedError

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Returns the ordinals of the selected row groups.

        Args:
            index_dict: indexes by name; see `etl.rowgroup_indexers`.
        """
        raise NotImplementedError


class SingleIndexSelector(RowGroupSelectorBase):
    """Selects row groups that contain any of the given values, according to one index."""

    def __init__(self, index_name: str, values_list: Iterable[Any]) -> None:
        self._index_name = index_name
        self._values_list = list(values_list)

    def get_index_names(self) -> list[str]:
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        index = index_dict[self._index_name]
        return {ordinal for value in self._values_list for ordinal in index.get_row_group_indexes(value)}


class IntersectIndexSelector(RowGroupSelectorBase):
    """Selects row groups that all of the given selectors select."""

    def __init__(self, single_index_selectors: Sequence[RowGroupSelectorBase]) -> None:
        self._selectors = list(single_index_selectors)

    def get_index_names(self) -> list[str]:
        return _names_of(self._selectors)

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        chosen = [selector.select_row_groups(index_dict) for selector in self._selectors]
        return set.intersection(*chosen) if chosen else set()


class UnionIndexSelector(RowGroupSelectorBase):
    """Selects row groups that any of the given selectors selects."""

    def __init__(self, single_index_selectors: Sequence[RowGroupSelectorBase]) -> None:
        self._selectors = list(single_index_selectors)

    def get_index_names(self) -> list[str]:
        return _names_of(self._selectors)

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        return {ordinal for selector in self._selectors for ordinal in selector.select_row_groups(index_dict)}


def _names_of(selectors: Sequence[RowGroupSelectorBase]) -> list[str]:
    return list(dict.fromkeys(name for selector in selectors for name in selector.get_index_names()))
