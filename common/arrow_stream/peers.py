"""`peer_of`: who is at the other end of a connection, as far as limits are concerned."""

from __future__ import annotations

import ipaddress

THIS_MACHINE = "this machine"
_NETWORK_BITS = 64  # of an IPv6 address; a machine may use any address in it


def peer_of(host: str) -> str:
    """Returns the name of the peer at an address. Addresses that one machine can choose freely have one name.

    >>> peer_of("127.0.0.7"), peer_of("::ffff:10.0.0.1"), peer_of("2001:db8::1:2")
    ('this machine', '10.0.0.1', '2001:db8::/64')
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return THIS_MACHINE
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return str(address)
