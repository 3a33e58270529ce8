"""A list-based model of ``concat``, ``pack_rows`` and ``bucket``, for the oracle.

An item's key identifies its contents: the tokens of a block, or the ids of the rows of a batch. `item_of` builds the
item for a key, and `check_epoch` checks the keys of all items of an epoch. Tokens are those of `builders`: row ``n``
has ``16 * (n + 1) + k`` in place ``k``; separators and padding are below 16.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from parquetry.common import Pipeline
from parquetry.common.base.native import gather
from parquetry.common.engine.steps import join

Row = dict[Any, Any]
WAYS = ("by the core", "by numpy, one by one", "by numpy, all at once")
"""The ways of copying pieces of token lists; see `copying`."""
JOINS = ("concat", "pack_rows", "bucket")
SEPARATOR = -1


def part_of(rows: Pipeline, ranks: int, rank: int, streams: int, buffer: int | None, *, shard_first: bool) -> Pipeline:
    """Returns one rank's part of the rows, shuffled unless ``buffer`` is ``None``, before or after they are dealt."""
    if shard_first:
        rows = rows.shard(ranks, rank, even="none", canonical_shards=streams)
    if buffer is not None:
        rows = rows.shuffle(buffer, seed=5)
    return rows if shard_first else rows.shard(ranks, rank, even="none", canonical_shards=streams)


@contextmanager
def copying(way: str) -> Iterator[None]:
    """Copies pieces of token lists in one of the `WAYS`."""
    with ExitStack() as patches:
        if way != WAYS[0]:
            patches.enter_context(patch.object(join, "copy_pieces", gather.copy_pieces_by_numpy))
            patches.enter_context(patch.object(gather, "_LONG_PIECE", 0 if way == WAYS[1] else 1 << 62))
        yield


@dataclass
class Joined:
    """The rows to join, and how.

    Attributes:
        verb: one of `JOINS`.
        args, options: arguments of the call.
        rows: rows before the call, in storage order, each with the length that ``bucket`` uses.
        change: applies later stages to a row of an item.
        key_name: final name of the token field or the id field.
        shuffled: whether there is a shuffle.
    """

    verb: str
    args: Sequence[Any]
    options: dict[str, Any]
    rows: list[tuple[Row, int]]
    change: Callable[[Row], Row]
    key_name: str
    shuffled: bool

    def key_of(self, item: Any) -> Any:
        """Returns the key that an engine item claims; its values are checked elsewhere."""
        if self.verb == "bucket":
            return tuple(row[self.key_name] for row in item)
        return tuple(map(int, item[self.key_name]))

    def item_of(self, key: Any) -> Any:
        """Returns the item for a key: a row, or the rows of a batch."""
        if self.verb == "bucket":
            return [self.change(row) for row in self._padded(key)]
        return self.change(self._block(key))

    def check_epoch(self, keys: Sequence[Any], streams: int) -> None:
        """Checks the items of an epoch, in their order across all ranks, against the rows."""
        checks = {"concat": self._check_concat, "pack_rows": self._check_pack, "bucket": self._check_bucket}
        checks[self.verb](keys, streams)

    # --- blocks of tokens ---

    @property
    def _documents(self) -> list[list[int]]:
        return [row[self.args[1]] for row, _ in self.rows]

    def _padding(self, name: str) -> Any:
        value = self.options.get("pad_value", 0)
        return value[name] if isinstance(value, dict) else value

    def _separator(self, name: str) -> Any:
        value = self.options.get("separator")
        return value[name] if isinstance(value, dict) else value

    def _block(self, tokens: Sequence[int]) -> Row:
        """Builds a block; each token identifies its row and place, and so the values of all fields in that place."""
        first, names = self.args[1], self.args[1:]
        at = {token: (row, k) for row, _ in self.rows for k, token in enumerate(row[first])}
        item: Row = {}
        for name in names:
            odd = {self._separator(first): self._separator(name), self._padding(first): self._padding(name)}
            item[name] = [at[t][0][name][at[t][1]] if t in at else odd[t] for t in tokens]
        if self.verb == "pack_rows" or self.options.get("positions"):
            segments = self._segments(tokens)
            item["segment_ids"] = [n if part[0] != self._padding(first) else 0 for n, part in segments for _ in part]
            item["position_ids"] = [
                k if part[0] != self._padding(first) else 0 for _, part in segments for k in range(len(part))
            ]
        return item

    def _segments(self, tokens: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Returns the parts of a block by row, numbered from 1; a separator belongs to the preceding row."""
        ends = {document[-1] for document in self._documents if document}
        parts: list[list[int]] = []
        for left, right in itertools.pairwise([None, *tokens]):
            follows = left is not None and right == left + 1 and left >= 16
            follows |= right == SEPARATOR and left in ends
            follows |= right == left == self._padding(self.args[1])
            if follows:
                parts[-1].append(right)  # type: ignore[arg-type]
            else:
                parts.append([right])  # type: ignore[list-item]
        return list(enumerate(parts, 1))

    def _check_concat(self, items: Sequence[tuple[int, ...]], streams: int) -> None:
        """Checks concatenated rows, cut at every ``length``; a row where two streams meet has a part in each."""
        length, separator = self.args[0], self._separator(self.args[1])
        between = [] if separator is None else [SEPARATOR]
        rows = self._documents
        laid = list(itertools.chain.from_iterable([*(between if n else []), *row] for n, row in enumerate(rows)))
        padded = self.options.get("remainder") == "pad"
        count = -(-len(laid) // length) if padded else len(laid) // length
        missing = count * length - len(laid)
        assert len(items) == count, f"expected {count} blocks, got {len(items)}"
        flat = list(itertools.chain.from_iterable(items))
        filled = flat[: len(flat) - missing] if missing > 0 else flat
        if streams == 1 and not self.shuffled:
            assert filled == laid[: count * length]
        if missing > 0:
            assert Counter(flat) == Counter([*laid, *[self._padding(self.args[1])] * missing])
        else:
            assert Counter(flat) <= Counter(laid)
        ends = {row[-1]: row for row in rows if row}
        starts = {row[0] for row in rows if row}
        for stream in range(streams):
            own = [t for t in itertools.chain.from_iterable(items[stream::streams]) if t != self._padding(self.args[1])]
            inside = 0  # rows that begin or end inside
            for left, right in itertools.pairwise(own):
                if SEPARATOR in (left, right) or right == left + 1:
                    continue
                inside += left not in ends or right not in starts or bool(between)
            assert inside <= (2 if streams > 1 else 0), f"stream {stream} is not rows end to end: {own}"

    def _check_pack(self, items: Sequence[tuple[int, ...]], streams: int) -> None:
        """Checks that each row, or each piece of a long row, is whole in exactly one item."""
        length = self.args[0]
        cut = self.options.get("overlong", "cut") == "cut"
        pieces = [
            row[at : at + length]
            for row in self._documents
            if cut or len(row) <= length
            for at in range(0, len(row), length)
        ]
        found = []
        for item in items:
            parts = [part for _, part in self._segments(item)]
            if parts[-1][0] == self._padding(self.args[1]):
                parts.pop()
            assert parts, "an item of nothing but padding"
            found += parts
        assert sorted(found) == sorted(pieces)

    # --- batches by length ---

    @property
    def _boundaries(self) -> list[int]:
        if self.options.get("buckets"):
            count, lengths = self.options["buckets"], sorted(length for _, length in self.rows)
            # Equal row counts: at every n-th part, the length of the row there, or of the next.
            return [lengths[-(-(len(lengths) - 1) * k // count)] for k in range(1, count)] if lengths else []
        return list(self.args[1])

    def _bucket(self, length: int) -> int:
        return sum(length > boundary for boundary in self._boundaries)

    def _size(self, bucket: int) -> int:
        """Returns the number of rows in a full batch of a bucket."""
        if self.options.get("batch_sizes"):
            return int(self.options["batch_sizes"][bucket])
        if self.options.get("max_tokens"):
            greatest = [*self._boundaries, max(length for _, length in self.rows)][bucket]
            if bucket and self.args[1:]:  # the last bucket is as long as its longest row, or the boundary before
                greatest = max(greatest, self._boundaries[bucket - 1])
            return max(self.options["max_tokens"] // max(greatest, 1), 1)
        return int(self.options["batch_size"])

    def _padded(self, ids: Sequence[int]) -> list[Row]:
        by_id = {row["id"]: row for row, _ in self.rows}
        rows = [dict(by_id[number]) for number in ids]
        for name in self.options.get("fields") or [self.args[0]]:
            if not isinstance(rows[0].get(name), list):
                continue
            lengths = [len(row[name]) for row in rows]
            width = max(lengths)
            if self.options.get("pad_to", "bucket") == "bucket" and self.args[1:]:
                width = next((boundary for boundary in self.args[1] if boundary >= width), width)
            for row, length in zip(rows, lengths, strict=True):
                row[name] = row[name] + [self.options["model_pad"][name]] * (width - length)
                row[f"{name}__length"] = length
        return rows

    def _check_bucket(self, batches: Sequence[tuple[int, ...]], streams: int) -> None:
        """Checks that each row comes once, with rows of its bucket, in the fewest batches if one group has all rows."""
        bucket_of = {row["id"]: self._bucket(length) for row, length in self.rows}
        assert Counter(itertools.chain.from_iterable(batches)) == Counter(bucket_of.keys())
        for batch in batches:
            [bucket] = {bucket_of[number] for number in batch}
            assert len(batch) <= self._size(bucket)
        if self.shuffled:
            return
        wanted = []
        for bucket in range(len(self._boundaries) + 1):
            members = [number for number, own in bucket_of.items() if own == bucket]
            size = self._size(bucket) if members else 1
            wanted += [tuple(members[at : at + size]) for at in range(0, len(members), size)]
        if streams == 1:
            assert list(batches) == wanted
        assert sorted(batches) == sorted(wanted)
