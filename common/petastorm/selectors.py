"""Row-group selectors: which row groups are read, by the indexes that are stored with the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class RowGroupSelectorBase:
    """Base of selectors."""

    def get_index_names(self) -> Iterable[str]:
        """The indexes that the selector looks at."""
        raise NotImplementedError

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """The ordinals of the wanted row groups.

        Args:
            index_dict: indexes by name; see `etl.rowgroup_indexers`.
        """
        raise NotImplementedError


class SingleIndexSelector(RowGroupSelectorBase):
    """Row groups that hold any of some values, by one index."""

    def __init__(self, index_name: str, values_list: Iterable[Any]) -> None:
        self._index_name = index_name
        self._values_list = list(values_list)

    def get_index_names(self) -> list[str]:
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        index = index_dict[self._index_name]
        return {ordinal for value in self._values_list for ordinal in index.get_row_group_indexes(value)}


class IntersectIndexSelector(RowGroupSelectorBase):
    """Row groups that every one of some selectors wants."""

    def __init__(self, single_index_selectors: Sequence[RowGroupSelectorBase]) -> None:
        self._selectors = list(single_index_selectors)

    def get_index_names(self) -> list[str]:
        return _names_of(self._selectors)

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        chosen = [selector.select_row_groups(index_dict) for selector in self._selectors]
        return set.intersection(*chosen) if chosen else set()


class UnionIndexSelector(RowGroupSelectorBase):
    """Row groups that any of some selectors wants."""

    def __init__(self, single_index_selectors: Sequence[RowGroupSelectorBase]) -> None:
        self._selectors = list(single_index_selectors)

    def get_index_names(self) -> list[str]:
        return _names_of(self._selectors)

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        return {ordinal for selector in self._selectors for ordinal in selector.select_row_groups(index_dict)}


def _names_of(selectors: Sequence[RowGroupSelectorBase]) -> list[str]:
    return list(dict.fromkeys(name for selector in selectors for name in selector.get_index_names()))
