"""`progress`: a progress bar on what takes long, and nothing at all on what does not.

The bar is made only once the time has passed: making one starts a thread, which would be in the way of processes that
fork.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

AFTER_S = 2.0
_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], what: str, total: int, *, unit: str) -> Iterator[_Item]:
    """The items, with a bar on standard error from the moment that they take longer than `AFTER_S` seconds."""
    begin = time.monotonic()
    bar = None
    try:
        for done, item in enumerate(items, 1):
            yield item
            if bar is not None:
                bar.update()
            elif time.monotonic() - begin > AFTER_S:
                from tqdm import tqdm  # not at the start of every process

                bar = tqdm(total=total, desc=what, initial=done, leave=False, unit=unit)
    finally:
        if bar is not None:
            bar.close()
