"""`TrainingStatistics`: what `Pipeline.fit` learned of some fields, a frozen value that is kept and shared as JSON.

Numbers have means, deviations, bounds and quantiles; categories have a vocabulary with counts.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ..base.errors import FieldNotFoundError, PipelineError
from ..base.process.dataclass import dataclass
from ..base.text_table import TextTable, counted
from .field import no_such_field
from .vocabulary import Vocabulary

_VERSION = 1
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberStatistics:
    """The statistics of the numbers of one field, those inside of lists and arrays included.

    Attributes:
        count: how many finite numbers there were. The other attributes are over these, and ``None`` without any.
        nulls: how many values were null, counting a list or an array once.
        nans, infinities: how many numbers were NaN, or infinite.
        mean: the mean.
        std: the population standard deviation, which divides by ``count``.
        min, max: the least and the greatest number.
        quantiles: the quantiles at 0, 1/n, ..., 1, interpolated linearly.
        quantile_error: how far the rank of a quantile may be off, as a share of ``count``; 0 = exact.
    """

    count: int
    nulls: int
    nans: int
    infinities: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    quantiles: tuple[float, ...]
    quantile_error: float

    def quantile(self, share: float) -> float:
        """Returns a quantile; ``0.5`` is the median. Between two that are kept, it is interpolated.

        Raises:
            PipelineError: there are no numbers, ``share`` is not within 0 to 1, or it is nearer to an end than the
                kept ones, other than 0 and 1.
        """
        parts = len(self.quantiles) - 1
        if parts < 0:
            raise PipelineError("quantile: expected numbers, got a field without any.")
        end = min(share, 1 - share)
        if not 0 <= share <= 1 or 0 < end < 1 / parts - 1e-9:
            raise PipelineError(
                f"quantile: expected 0, 1, or a number from {1 / parts:g} to {1 - 1 / parts:g}, got {share!r}. "
                f"Write fit(..., quantiles={math.ceil(1 / end) if end > 0 else 1000}) for finer ones."
            )
        return float(np.interp(share * parts, np.arange(parts + 1), self.quantiles))


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryStatistics:
    """The statistics of the texts, byte strings or integers of one field, those inside of lists included.

    Attributes:
        count: how many values there were.
        nulls: how many values were null, counting a list once.
        distinct: how many different values there were.
        values: those that are frequent enough (``min_count``, ``max_size``), in ascending order: the vocabulary.
        counts: how often each occurs.
    """

    count: int
    nulls: int
    distinct: int
    values: tuple[Any, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStatistics:
    """The statistics of each place along the last axis of a field, such as the joints of a robot. See `from_lerobot`.

    Attributes:
        count: how many numbers there were at each place.
        mean, std, min, max: those of each place.
        quantiles: pairs of a share and the quantiles of the places there.
    """

    count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min: tuple[float, ...]
    max: tuple[float, ...]
    quantiles: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def quantile(self, share: float) -> tuple[float, ...]:
        """Returns the quantile of each place.

        Raises:
            PipelineError: it is not among those that are known, and ``share`` is neither 0 nor 1.
        """
        known = {0: self.min, **dict(self.quantiles), 1: self.max}
        if share not in known:
            raise PipelineError(
                f"quantile: expected one of {', '.join(f'{each:g}' for each in sorted(known))}, which are known, got "
                f"{share!r}. For others, call fit()."
            )
        return known[share]


FieldStatistics = NumberStatistics | CategoryStatistics | ElementStatistics


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingStatistics(Mapping[str, FieldStatistics]):
    """The statistics of some fields over the rows of a pipeline: a mapping from their names. Prints as a table. See
    `Pipeline.fit`.

    Attributes:
        rows: the number of rows.
        dataset: the version of the dataset.
        chain: the verbs of the pipeline, as text.
        fields: the statistics, by name.
    """

    rows: int
    dataset: str
    chain: tuple[str, ...]
    fields: tuple[tuple[str, FieldStatistics], ...]

    def __getitem__(self, name: str) -> FieldStatistics:
        return dict(self.fields)[name]

    def __iter__(self) -> Any:
        return iter(dict(self.fields))

    def __len__(self) -> int:
        return len(self.fields)

    def __repr__(self) -> str:
        return f"{self._table()}\n{self._counted()}"

    def _repr_html_(self) -> str:
        return f"{self._table()._repr_html_()}<p>{self._counted()}</p>"

    def _counted(self) -> str:
        return f"of {counted(self.rows, 'row')}"

    def _table(self) -> TextTable:
        return TextTable(("field", "statistics"), [(name, _in_words(each)) for name, each in self.fields])

    def number(self, verb: str, name: str) -> NumberStatistics | ElementStatistics:
        """The statistics of a field of numbers, for a verb.

        Raises:
            FieldNotFoundError: the field is not among them.
            PipelineError: it is a category, or has no finite numbers.
        """
        statistics = self._field(verb, name)
        if isinstance(statistics, CategoryStatistics) or not statistics.count:
            what = "those of a category" if isinstance(statistics, CategoryStatistics) else "no finite numbers"
            raise PipelineError(f"{verb} '{name}': expected statistics of numbers, got {what}.")
        return statistics

    def vocabulary(self, verb: str, name: str) -> tuple[Any, ...]:
        """The vocabulary of a field, for a verb.

        Raises:
            FieldNotFoundError: the field is not among them.
            PipelineError: it holds numbers, or no value is frequent enough.
        """
        statistics = self._field(verb, name)
        if not isinstance(statistics, CategoryStatistics) or not statistics.values:
            what = "no values" if isinstance(statistics, CategoryStatistics) else "those of numbers"
            raise PipelineError(
                f"{verb} '{name}': expected statistics of a category, got {what}. Fit it with categories=['{name}'], "
                "or with a lower min_count."
            )
        return statistics.values

    def _field(self, verb: str, name: str) -> FieldStatistics:
        try:
            return self[name]
        except KeyError:
            raise FieldNotFoundError(f"{verb}, stats: {no_such_field(name, list(self))}") from None

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object with everything, readable enough for a model card. Floats keep all their digits."""
        return {
            "version": _VERSION,
            "rows": self.rows,
            "dataset": self.dataset,
            "chain": list(self.chain),
            "fields": {name: _to_json(statistics) for name, statistics in self.fields},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainingStatistics:
        """The inverse of `to_json`: the result is equal.

        Raises:
            PipelineError: the value is something else, or comes from a later release.
        """
        if not isinstance(value, Mapping) or value.get("version") != _VERSION:
            raise PipelineError(
                f"statistics: expected what to_json() returned, version {_VERSION}, got {value!r:.80}. Update "
                "parquetry if a later release wrote it."
            )
        try:
            return cls(
                rows=value["rows"],
                dataset=value["dataset"],
                chain=tuple(value["chain"]),
                fields=tuple((name, _from_json(each)) for name, each in value["fields"].items()),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PipelineError(
                f"statistics: expected what to_json() returned, got another object: {error!r}"
            ) from error


def _in_words(statistics: FieldStatistics) -> str:
    if isinstance(statistics, CategoryStatistics):
        common = sorted(zip(statistics.counts, statistics.values, strict=True), key=lambda pair: -pair[0])[:_MOST_SHOWN]
        shown = [f"{value!r:.20} ({count:,})" for count, value in common]
        more = ["..."] if len(statistics.values) > len(common) else []
        kept = len(statistics.values)
        distinct = f"{statistics.distinct:,} distinct" + ("" if kept == statistics.distinct else f", {kept:,} kept")
        return ", ".join([distinct, *shown, *more, *_others(null=statistics.nulls)])
    if isinstance(statistics, ElementStatistics):
        return f"mean and std of {len(statistics.mean):,} places"
    if statistics.mean is None or statistics.std is None:
        return ", ".join(["no finite numbers", *_others(null=statistics.nulls, NaN=statistics.nans)])
    numbers = [
        f"mean {statistics.mean:.5g}, std {statistics.std:.5g}, {statistics.min:.5g} ... {statistics.max:.5g}",
        f"median {np.median(statistics.quantiles):.5g}",
    ]
    others = _others(null=statistics.nulls, NaN=statistics.nans, infinite=statistics.infinities)
    return ", ".join([*numbers, *others])


def _others(**counts: int) -> list[str]:
    return [f"{count:,} {name}" for name, count in counts.items() if count]


def _to_json(statistics: FieldStatistics) -> dict[str, Any]:
    made = {item.name: getattr(statistics, item.name) for item in fields(statistics)}
    made = {name: list(value) if isinstance(value, tuple) else value for name, value in made.items()}
    if isinstance(statistics, NumberStatistics):
        return {"kind": "numbers", **made}
    if isinstance(statistics, ElementStatistics):
        made["quantiles"] = [[share, list(values)] for share, values in statistics.quantiles]
        return {"kind": "numbers by place", **made}
    if any(isinstance(value, bytes) for value in statistics.values):
        made["values"] = [base64.b64encode(value).decode() for value in statistics.values]
        return {"kind": "byte strings in base64", **made}
    return {"kind": "categories", **made}


def _from_json(value: Mapping[str, Any]) -> FieldStatistics:
    made: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
    kind = made.pop("kind")
    if kind == "numbers":
        return NumberStatistics(**made)
    if kind == "numbers by place":
        made["quantiles"] = tuple((share, tuple(values)) for share, values in made["quantiles"])
        return ElementStatistics(**made)
    if kind == "byte strings in base64":
        made["values"] = tuple(map(base64.b64decode, made["values"]))
    elif kind != "categories":
        raise ValueError(f"statistics of {kind}")
    if made["values"]:
        Vocabulary.of(made["values"], "statistics")
    return CategoryStatistics(**made)
