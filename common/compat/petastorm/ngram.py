"""`NGram`: windows of consecutive rows, with their own fields at each offset."""

from __future__ import annotations

import decimal
import itertools
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.errors import PipelineError
from .unischema import Unischema, UnischemaField, match_unischema_fields


class NGram:
    """Describes windows of consecutive rows.

    Args:
        fields: ``{offset: [fields or regexes]}``. A window is ``max(offset) - min(offset) + 1`` rows long; an offset
            without an entry still takes up a row.
        delta_threshold: maximum difference between adjacent timestamps in a window (inclusive).
        timestamp_field: the field that orders the rows, or a regex that matches its name.
        timestamp_overlap: whether windows may share timestamps.
    """

    def __init__(
        self,
        fields: dict[int, list[Any]],
        delta_threshold: float | decimal.Decimal,
        timestamp_field: str | UnischemaField,
        timestamp_overlap: bool = True,
    ) -> None:
        _check(fields, delta_threshold, timestamp_field, timestamp_overlap)
        self._fields = fields
        self._delta_threshold = delta_threshold
        self._timestamp_field: Any = timestamp_field  # a UnischemaField once a reader has resolved it
        self.timestamp_overlap = timestamp_overlap

    @property
    def length(self) -> int:
        """Number of rows in a window."""
        return max(self._fields) - min(self._fields) + 1

    @property
    def offsets(self) -> range:
        """All offsets of the window, including those without fields."""
        return range(min(self._fields), max(self._fields) + 1)

    @property
    def fields(self) -> dict[int, list[Any]]:
        """``{offset: [fields]}``; may contain regexes until a reader has resolved them."""
        return self._fields

    @property
    def delta_threshold(self) -> float | decimal.Decimal:
        """Maximum difference between adjacent timestamps."""
        return self._delta_threshold

    def resolve_regex_field_names(self, schema: Unischema) -> None:
        """Replaces regexes with fields of the schema; raises ``ValueError`` unless exactly one is the timestamp."""
        self._fields = {offset: self.convert_fields(schema, items) for offset, items in self._fields.items()}
        stamps = self.convert_fields(schema, [self._timestamp_field])
        if len(stamps) != 1:
            raise PipelineError(
                f"NGram: expected timestamp_field to name one field, got {[field.name for field in stamps]}."
            )
        self._timestamp_field = stamps[0]

    def convert_fields(self, unischema: Unischema, field_list: Sequence[Any]) -> list[UnischemaField]:
        """Returns the given field objects, followed by the fields that match the regexes."""
        patterns = [item for item in field_list if isinstance(item, str)]
        objects: list[Any] = [item for item in field_list if isinstance(item, tuple)]
        if len(patterns) + len(objects) != len(field_list):
            raise PipelineError(f"NGram: expected UnischemaField values or regular expressions, got {field_list!r}.")
        matched = match_unischema_fields(unischema, patterns)
        return objects + [field for field in matched if field not in objects]

    def get_field_names_at_timestep(self, timestep: int) -> list[str]:
        """Returns the names of the fields at an offset."""
        return [field.name for field in self._fields.get(timestep, ())]

    def get_field_names_at_all_timesteps(self) -> list[UnischemaField]:
        """Returns the fields of all offsets, without duplicates."""
        return list(dict.fromkeys(field for fields in self._fields.values() for field in fields))

    def get_schema_at_timestep(self, schema: Unischema, timestep: int) -> Unischema:
        """Returns the part of a schema that belongs to an offset, in schema order."""
        names = set(self.get_field_names_at_timestep(timestep))
        return schema.create_schema_view([field for name, field in schema.fields.items() if name in names])

    def make_namedtuple(self, schema: Unischema, ngram_as_dicts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Converts ``{offset: {name: value}}`` to ``{offset: named tuple}``."""
        return {
            offset: self.get_schema_at_timestep(schema, offset).make_namedtuple(**values)
            for offset, values in ngram_as_dicts.items()
        }

    def form_ngram(self, data: Sequence[Mapping[str, Any]], schema: Unischema) -> list[dict[int, dict[str, Any]]]:
        """Forms the windows of a list of rows, as ``{offset: {name: value}}``.

        Raises:
            PipelineError: the timestamps decrease.
        """
        stamp = self._timestamp_field.name
        names = {offset: set(self.get_field_names_at_timestep(offset)) for offset in self.offsets}
        result = []
        last = None
        for first in range(len(data) - self.length + 1):
            rows = data[first : first + self.length]
            stamps = [row[stamp] for row in rows]
            gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
            if any(later < earlier for earlier, later in itertools.pairwise(stamps)):
                raise PipelineError(f"NGram: expected rows sorted by '{stamp}', got {stamps}.")
            if last is not None and stamps[0] <= last:
                continue
            if any(gap > self.delta_threshold for gap in gaps):
                continue
            result.append(
                {
                    offset: {name: value for name, value in row.items() if name in names[offset]}
                    for offset, row in zip(self.offsets, rows, strict=True)
                }
            )
            last = None if self.timestamp_overlap else stamps[-1]
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NGram) or self._fields.keys() != other._fields.keys():
            return False
        return all(set(fields) == set(other._fields[offset]) for offset, fields in self._fields.items())

    def __hash__(self) -> int:
        return hash(frozenset(self._fields))


def _check(fields: object, delta_threshold: object, timestamp_field: object, timestamp_overlap: object) -> None:
    if not isinstance(fields, dict) or not fields:
        raise PipelineError(f"NGram: expected fields={{offset: [fields]}}, got {fields!r}.")
    for offset, items in fields.items():
        if not isinstance(items, list) or not all(isinstance(item, str | UnischemaField) for item in items):
            raise PipelineError(
                f"NGram: expected a list of UnischemaField values or regular expressions at offset {offset}, "
                f"got {items!r}."
            )
    if not isinstance(delta_threshold, numbers.Number) or isinstance(delta_threshold, bool):
        raise PipelineError(f"NGram: expected delta_threshold to be a number, got {delta_threshold!r}.")
    if not isinstance(timestamp_field, str | UnischemaField):
        raise PipelineError(f"NGram: expected timestamp_field to be a field or its name, got {timestamp_field!r}.")
    if not isinstance(timestamp_overlap, bool):
        raise PipelineError(f"NGram: expected timestamp_overlap to be True or False, got {timestamp_overlap!r}.")
