"""Collects the ids from a loop over any face, whose elements have a field ``id``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def ids(elements: Iterable[Any]) -> list[int]:
    """Returns the ids of all elements in a flat list."""
    return [int(number) for element in elements for number in np.atleast_1d(element["id"]).reshape(-1)]


def ids_by_element(elements: Iterable[Any]) -> list[Any]:
    """Returns the ids of each element: a number for a row, a list for a batch."""
    return [np.asarray(element["id"]).tolist() for element in elements]
