"""Notes calls of a function that does its work as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def spied(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]) -> list[Any]:
    """Returns a list that gets ``note(...)`` of each call of ``owner.name``, with the arguments of that call.

    Threads and forked processes use the same replacement, but only threads share the list.
    """
    notes: list[Any] = []
    called = getattr(owner, name)

    def spy(*args: Any, **options: Any) -> Any:
        notes.append(note(*args, **options))
        return called(*args, **options)

    monkeypatch.setattr(owner, name, spy)
    return notes
