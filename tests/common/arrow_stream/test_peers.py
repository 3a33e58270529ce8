"""Addresses that one machine can choose freely are one peer."""

from __future__ import annotations

import pytest

from parquetry.common.arrow_stream.peers import peer_of


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("127.0.0.1", "this machine"),
        ("127.3.2.1", "this machine"),
        ("::1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_machine_is_one_peer_whatever_address_it_uses(host: str, peer: str) -> None:
    assert peer_of(host) == peer
