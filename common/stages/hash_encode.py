"""``hash_encode``: replaces texts, byte strings and integers by their hash, as one of a number of codes."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.plain import Seed
from .base import Stage, is_integer, matches
from .columns import Columns
from .steps import ValueStep


@dataclass(frozen=True, slots=True, kw_only=True)
class HashEncodeStep(ValueStep):
    """Replaces values by ``hash % buckets``, with the hash of `hash_split`."""

    verb: ClassVar[str] = "hash_encode"
    buckets: int
    seed: int


@dataclass(frozen=True)
class HashEncode(Stage):
    """Replaces the values of fields by int64 codes below ``buckets``."""

    verb: ClassVar[str] = "hash_encode"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), 2)
    patterns: tuple[str, ...]
    hash_buckets: int
    seed: Seed = 0

    def check(self) -> None:
        if not is_integer(self.hash_buckets) or self.hash_buckets < 1:
            raise PipelineError(f"hash_encode: expected buckets to be an integer >= 1, got {self.hash_buckets!r}.")

    def changes(self, name: str) -> bool:
        return matches(self.patterns, name)

    def apply(self, columns: Columns) -> None:
        columns.open()
        for number in columns.matching(self.patterns):
            output = columns.outputs[number]
            if output.kind == "dense" and output.dtype.kind not in "iu":
                raise PipelineError(
                    f"hash_encode: field '{output.name}': expected strings, bytes or integers, got {output.dtype}."
                )
            columns.steps.append(HashEncodeStep(number=number, field=output, buckets=self.hash_buckets, seed=self.seed))
            columns.outputs[number] = replace(output, kind="dense", dtype=np.dtype(np.int64), time=None, as_time=False)
