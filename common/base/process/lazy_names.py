"""`lazy_names`: a package's names, each imported when it is first used. `without_collections`: imports that collect no
garbage.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` for the ``__init__.py`` of a package.

    Args:
        package: its ``__name__``.
        modules: the names in each module; modules are named as after ``from``, such as ``".module"``.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with without_collections():
            value = getattr(import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes)


@contextmanager
def without_collections() -> Iterator[None]:
    """Stops the garbage collector while the block imports modules.

    It would find nothing, because modules stay, and look again and again at all that a framework has imported.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
