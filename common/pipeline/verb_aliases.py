"""`VerbAliases`: two verbs under their names in tf.data and torch, for classes whose framework has neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..schema.field import UnischemaField
from ..stages.base import FieldNames
from .verbs import Verbs

if TYPE_CHECKING:
    from typing import Self


class VerbAliases(Verbs):
    """``map`` and ``filter``.

    `ParquetDataset` and `ParquetPipe` have the framework's own: their ``map`` applies a function of tensors in the
    process that reads the elements, and their ``filter`` also takes a function of whole elements.
    """

    def map(
        self,
        fn: Callable[[Any], Any],
        output: UnischemaField | Iterable[UnischemaField] | None = None,
        remove: Sequence[str] = (),
        batched: bool | Literal["arrow"] = False,
        drops: bool = False,
        *,
        adds: FieldNames | None = None,
        lengths: bool = False,
        version: str | int | None = None,
        rng: bool = False,
        seed: int | None = None,
    ) -> Self:
        """Alias of `transform`: applies a function to numpy rows (or batches) where they are decoded.

        >>> doubled = drive.map(lambda row: {**row, "id": 2 * row["id"]})
        >>> [int(row["id"]) for row in doubled.take(3)]
        [0, 2, 4]
        """
        more: dict[str, Any] = {"adds": adds, "lengths": lengths, "version": version, "rng": rng, "seed": seed}
        return self.transform(fn, output, remove, batched, drops, **more)

    def filter(self, predicate: object, fields: Sequence[str] | None = None, *, batched: bool = False) -> Self:
        """Alias of `where`: keeps the rows for which an expression, DNF tuples, a column predicate, or a function of
        ``fields`` is true.

            >>> [int(row["id"]) for row in drive.filter(pc.field("speed") > 18)]
            [37, 38, 39]
        """
        return self.where(predicate, fields, batched=batched)
