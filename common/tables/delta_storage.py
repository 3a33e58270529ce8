"""`DeltaStorage`: access to a Delta table's storage through deltalake, from any process."""

from __future__ import annotations

from typing import Any

from deltalake.fs import DeltaStorageHandler


class DeltaStorage(DeltaStorageHandler):
    """A ``pyarrow.fs`` handler that pickles as its URI and options; paths are relative to the table."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        super().__init__(uri, options=options or None)
        self._made_of = (uri, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeltaStorage, self._made_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeltaStorage) and other._made_of == self._made_of

    def __hash__(self) -> int:
        return hash(self._made_of[0])
