"""Gives loaders and trainers access to the state, epochs and length of a `ParquetPipe`.

``DataLoader`` and ``StatefulDataLoader`` put every DataPipe into a torch wrapper before they iterate it. The wrapper's
iterator hides ``state_dict`` and ``load_state_dict``: the loader would resume by replaying from the start, in the wrong
epoch. The wrapper also hides ``set_epoch``, which trainers call. The pipes of this package get a wrapper that forwards
these methods; all other pipes get torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .torch_internals import serialization_wrapper

_Wrapper: Any = serialization_wrapper()


class _OwnIterator:
    """A plain class, because the DataPipe metaclass would wrap the iterator again."""

    _datapipe: Any

    def __iter__(self) -> Iterator[Any]:
        return iter(self._datapipe)

    def __len__(self) -> int:
        return self.length_in_loader()

    def length_in_loader(self) -> int:
        return int(self._datapipe.length_in_loader())

    def set_epoch(self, epoch: int) -> None:
        self._datapipe.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._datapipe.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Any:
        self._datapipe.load_state_dict(state_dict, strict=strict)
        return self


if _Wrapper is not None:

    class StatefulWrapper(_OwnIterator, _Wrapper):  # a class that may be missing
        """Torch's wrapper with the pipe's own iterator, which has state."""


def install() -> None:
    """Chooses the wrapper by the pipe it wraps. Idempotent; has no effect if torch has no such wrapper."""
    if _Wrapper is not None and "__new__" not in vars(_Wrapper):
        _Wrapper.__new__ = _choose


def _choose(cls: type, datapipe: object = None, *args: object, **kwargs: object) -> Any:
    has_state = hasattr(type(datapipe), "length_in_loader") and hasattr(type(datapipe), "state_dict")
    return object.__new__(StatefulWrapper if cls is _Wrapper and has_state else cls)
