"""`NumberVerbs`: the verbs that scale, clip and discretize features, shared by all dataset classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numpy.typing import DTypeLike

from ..schema.training_statistics import TrainingStatistics
from ..stages.base import FieldNames, numeric_dtype, required_names
from ..stages.bucketize import Bucketize
from ..stages.clip import Clip
from ..stages.hash_encode import HashEncode
from ..stages.standardize import Standardize
from .field_verbs import FieldVerbs

if TYPE_CHECKING:  # the standard library has it since Python 3.11
    from typing import Self


class NumberVerbs(FieldVerbs):
    """Verbs on features. ``stats`` is what `Pipeline.fit` returned, which has the numbers for each field."""

    def standardize(
        self,
        *names: FieldNames,
        stats: TrainingStatistics | None = None,
        mean: float | None = None,
        std: float | None = None,
        dtype: DTypeLike = "float32",
    ) -> Self:
        """Computes ``(value - mean) / std``, including inside lists, arrays and windows.

            >>> stats = drive.fit("id", "speed")
            >>> [float(row["id"]) for row in drive.standardize("id", stats=stats).skip(19).take(2)]
            [-0.04331480711698532, 0.04331480711698532]
            >>> next(iter(drive.standardize("id", mean=1, std=2).batch(4)))["id"].tolist()
            [-0.5, 0.0, 0.5, 1.0]

        It computes in float64 and rounds once. Nulls stay nulls, NaN stays NaN, and infinity stays infinite. A field
        whose fitted numbers are all equal becomes 0.

        Args:
            stats: what `Pipeline.fit` returned; the names select fields among those that were fitted.
            mean, std: instead of ``stats``, the same numbers for all names.
            dtype: ``"float32"``, ``"float16"`` or ``"float64"``.

        Raises:
            PipelineError: neither or both of ``stats`` and numbers are given, a number is not finite, ``std`` is not
                above 0, or a field holds no numbers.
            FieldNotFoundError: a field was not fitted, or there is none (raised when the element is first needed).
        """
        return self._with_stage(Standardize.of(names, stats, mean, std, numeric_dtype("standardize", dtype)))

    def clip(
        self,
        *names: FieldNames,
        stats: TrainingStatistics | None = None,
        quantiles: Sequence[float] = (0.0, 1.0),
        low: float | None = None,
        high: float | None = None,
    ) -> Self:
        """Replaces numbers below ``low`` by ``low``, and numbers above ``high`` by ``high``. The dtype stays.

            >>> [int(row["id"]) for row in drive.clip("id", low=1.5, high=3).take(6)]
            [2, 2, 2, 3, 3, 3]
            >>> clipped = drive.clip("id", stats=drive.fit("id"), quantiles=(0.25, 0.75))
            >>> sorted({int(row["id"]) for row in clipped})[::19]
            [10, 29]

        Bounds of integers are rounded inwards. Nulls stay nulls, NaN stays NaN, and infinity becomes a bound.

        Args:
            stats: what `Pipeline.fit` returned; the names select fields among those that were fitted.
            quantiles: with ``stats``, the two quantiles to clip to; by default, the least and the greatest number.
            low, high: instead of ``stats``, the bounds; ``None`` = none on this side.

        Raises:
            PipelineError: neither or both of ``stats`` and bounds are given, they are not in order, a quantile is finer
                than those that were fitted, or a field holds no integers or floats.
            FieldNotFoundError: a field was not fitted, or there is none (raised when the element is first needed).
        """
        return self._with_stage(Clip.of(names, stats, quantiles, low, high))

    def bucketize(
        self,
        *names: FieldNames,
        stats: TrainingStatistics | None = None,
        buckets: int | None = None,
        boundaries: Sequence[float] | None = None,
    ) -> Self:
        """Replaces numbers with int64 codes: how many boundaries are not above the number.

            >>> [int(row["id"]) for row in drive.bucketize("id", boundaries=[2, 4]).take(6)]
            [0, 0, 1, 1, 2, 2]
            >>> codes = [int(row["id"]) for row in drive.bucketize("id", stats=drive.fit("id"), buckets=4)]
            >>> [codes.count(code) for code in range(4)]
            [10, 10, 10, 10]

        Nulls stay nulls. Infinity is in the first or last bucket, and NaN is an error.

        Args:
            stats: what `Pipeline.fit` returned; the names select fields among those that were fitted.
            buckets: with ``stats``, how many buckets, with about equally many numbers each. Where many numbers are
                equal, there are fewer.
            boundaries: instead of ``stats``, ascending numbers, for all names.

        Raises:
            PipelineError: neither or both of ``stats`` and ``boundaries`` are given, these are not ascending finite
                numbers, or a field holds no numbers.
            FieldNotFoundError: a field was not fitted, or there is none (raised when the element is first needed).
            DecodeError: a number is NaN; the message names field, file and row.
        """
        return self._with_stage(Bucketize.of(names, stats, buckets, boundaries))

    def hash_encode(self, *names: FieldNames, buckets: int, seed: int = 0) -> Self:
        """Replaces texts, byte strings and integers with int64 codes from 0 to ``buckets - 1``, by a stable hash.

            >>> [int(row["id"]) for row in drive.hash_encode("id", buckets=100).take(4)]
            [35, 65, 10, 53]

        The code of a value is its 64-bit hash modulo ``buckets``. The hash is that of `hash_split`: SplitMix64 of
        integers, BLAKE2b of texts and bytes. It is the same in every process, release and machine, and needs no
        vocabulary. Different values may share a code. Nulls stay nulls; fill them before, for a code of their own.

        Raises:
            PipelineError: ``buckets`` is not an integer of at least 1, or a field holds other types.
            FieldNotFoundError: a name or regex matches nothing (raised when the element is first needed).
        """
        return self._with_stage(HashEncode(required_names("hash_encode", names), buckets, seed))
