"""`as_is`: the ``collate_fn`` of a loader that is given batches."""

from __future__ import annotations

from typing import TypeVar

Batch = TypeVar("Batch")


def as_is(batch: Batch) -> Batch:
    """The batch itself: ``DataLoader(pipe, batch_size=None, collate_fn=as_is)``.

    Without it the loader looks at each value of each batch for arrays to convert, text by text. There are none: a pipe
    gives tensors, strings, and lists of them.
    """
    return batch
