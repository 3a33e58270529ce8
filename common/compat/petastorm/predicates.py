"""Predicates that decide which rows a reader keeps.

A predicate names its fields and decides about one row, given as ``{field: value}``. Both readers call the predicates of
this module for each row, with one exception: `make_batch_reader` passes whole columns to `in_lambda` and to predicates
that you define, which then return a mask.
"""

from __future__ import annotations

import collections.abc
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.errors import PipelineError


class PredicateBase:
    """Base class of predicates."""

    by_row = False
    """Whether a batched reader calls the predicate for each row."""

    def get_fields(self) -> Iterable[str]:
        """Returns the names of the fields that `do_include` uses."""
        raise NotImplementedError

    def do_include(self, values: Any) -> Any:
        """Returns whether to keep the row with these values."""
        raise NotImplementedError


class in_set(PredicateBase):  # noqa: N801  # Petastorm's name
    """Keeps rows in which a field has one of the given values."""

    by_row = True

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        self._inclusion_values = set(inclusion_values)
        self._predicate_field = predicate_field

    def get_fields(self) -> set[str]:
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        return values[self._predicate_field] in self._inclusion_values


class in_intersection(PredicateBase):  # noqa: N801  # Petastorm's name
    """Keeps rows in which a list field contains any of the given values, or a text field equals one. Drops nulls."""

    by_row = True

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        self._inclusion_values = set(inclusion_values)
        self._predicate_field = _predicate_field

    def get_fields(self) -> set[str]:
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        value = values[self._predicate_field]
        if value is None:
            return False
        if isinstance(value, str | bytes):
            return value in self._inclusion_values
        if not isinstance(value, collections.abc.Iterable):
            raise PipelineError(
                f"in_intersection: expected field '{self._predicate_field}' to be iterable, got {type(value).__name__}."
            )
        items = value.ravel().tolist() if isinstance(value, np.ndarray) else value
        return not self._inclusion_values.isdisjoint(items)


class in_lambda(PredicateBase):  # noqa: N801  # Petastorm's name
    """Keeps rows for which a function of some fields returns true.

    Args:
        predicate_fields: a list of names; the function gets their values in this order.
        predicate_func: the function.
        state_arg: if not ``None``, passed to the function as its last argument.
    """

    def __init__(
        self, predicate_fields: list[str], predicate_func: Callable[..., Any], state_arg: object = None
    ) -> None:
        if not isinstance(predicate_fields, list):
            raise PipelineError(f"in_lambda: expected a list of field names, got {predicate_fields!r}.")
        self._predicate_fields = predicate_fields
        self._predicate_func = predicate_func
        self._state_arg = state_arg

    def get_fields(self) -> set[str]:
        return set(self._predicate_fields)

    def do_include(self, values: Mapping[str, Any]) -> Any:
        args = [values[field] for field in self._predicate_fields]
        if self._state_arg is not None:
            args.append(self._state_arg)
        return self._predicate_func(*args)


class in_negate(PredicateBase):  # noqa: N801  # Petastorm's name
    """Keeps the rows that another predicate drops."""

    def __init__(self, predicate: PredicateBase) -> None:
        _check_predicate("in_negate", predicate)
        self._predicate = predicate

    @property
    def inner(self) -> PredicateBase:
        """The negated predicate."""
        return self._predicate

    @property
    def by_row(self) -> bool:  # type: ignore[override]  # depends on the inner one
        """Whether a batched reader calls the predicate for each row."""
        return self._predicate.by_row

    def get_fields(self) -> Iterable[str]:
        return self._predicate.get_fields()

    def do_include(self, values: Mapping[str, Any]) -> Any:
        answer = self._predicate.do_include(values)
        return ~np.asarray(answer, dtype=bool) if np.ndim(answer) else not answer


class in_reduce(PredicateBase):  # noqa: N801  # Petastorm's name
    """Keeps rows for which a function of several predicates' answers, such as ``all`` or ``any``, returns true."""

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[Any]], Any]) -> None:
        for predicate in predicate_list:
            _check_predicate("in_reduce", predicate)
        self._predicate_list = list(predicate_list)
        self._reduce_func = reduce_func

    @property
    def parts(self) -> list[PredicateBase]:
        """The combined predicates."""
        return self._predicate_list

    @property
    def by_row(self) -> bool:  # type: ignore[override]  # depends on the inner ones
        """Whether a batched reader calls the predicate for each row."""
        return all(predicate.by_row for predicate in self._predicate_list)

    def get_fields(self) -> set[str]:
        return {field for predicate in self._predicate_list for field in predicate.get_fields()}

    def do_include(self, values: Mapping[str, Any]) -> Any:
        return self._reduce_func([predicate.do_include(values) for predicate in self._predicate_list])

    def reduce_masks(self, masks: Sequence[np.ndarray]) -> np.ndarray:
        """Combines the masks of the predicates into the answer for each row."""
        rows = zip(*(mask.tolist() for mask in masks), strict=True)
        return np.array([bool(self._reduce_func(list(answers))) for answers in rows], dtype=bool)


class in_pseudorandom_split(PredicateBase):  # noqa: N801  # Petastorm's name
    """Keeps the rows that a hash of a field assigns to one part of a split; always the same rows as Petastorm's.

    A row belongs to a part if the MD5 sum of the value's text, as an integer modulo ``sys.maxsize``, lies between the
    part's cumulative fractions of ``sys.maxsize - 1``.

    Args:
        fraction_list: the size of each part, from 0 to 1.
        subset_index: index of the part to keep.
        predicate_field: the field whose value is hashed.
    """

    by_row = True

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        if subset_index >= len(fraction_list):
            raise PipelineError(
                f"in_pseudorandom_split: subset_index is out of range: expected at most {len(fraction_list) - 1}, "
                f"got {subset_index}."
            )
        self._predicate_field = predicate_field
        # Added one by one from the left: Python 3.12's sum() rounds differently and would move rows near the borders.
        borders = [0, *itertools.accumulate(fraction_list)]
        self._low = borders[subset_index] * (sys.maxsize - 1)
        self._high = borders[subset_index + 1] * (sys.maxsize - 1)

    def get_fields(self) -> set[str]:
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        if self._predicate_field not in values:
            raise PipelineError(f"in_pseudorandom_split: expected the field '{self._predicate_field}', got {values!r}.")
        text = str(values[self._predicate_field])
        bucket = int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % sys.maxsize
        return self._low <= bucket < self._high


def _check_predicate(name: str, predicate: object) -> None:
    if not isinstance(predicate, PredicateBase):
        raise PipelineError(f"{name}: expected a predicate derived from PredicateBase, got {predicate!r}.")
