"""Addresses on which a server may listen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .served import socket_url


@pytest.fixture(params=["unix", "tcp"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields an address of each kind."""
    if request.param == "tcp":
        yield "tcp://127.0.0.1:0"
        return
    with socket_url() as path:
        yield path
