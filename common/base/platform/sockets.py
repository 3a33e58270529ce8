"""Unix sockets: pairs that keep packets apart, descriptors that are closed on exec, and who is at the other end."""

from __future__ import annotations

import errno
import os
import socket
import struct

_PEER = struct.Struct("3i")  # process, user and group, as SO_PEERCRED gives them


def has_packets() -> bool:
    """Whether `packet_pair` works here, and with it the sidecar."""
    return hasattr(socket, "SOCK_SEQPACKET")


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets. Each message arrives as a whole.

    Raises:
        OSError: the system has no such sockets, as macOS.
    """
    if not has_packets():
        raise OSError(
            errno.EPROTONOSUPPORT,
            'this system has no sockets that keep packets apart, which sidecars need: use executor="threads"',
        )
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive(connection: socket.socket, size: int, most: int, flags: int = 0) -> tuple[bytes, list[int], int]:
    """Receives bytes and at most ``most`` descriptors, which are closed on exec. Returns them and the message's flags.

    Raises:
        OSError: as ``recvmsg``.
    """
    flags |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, descriptors, message_flags, _ = socket.recv_fds(connection, size, most, flags)
    if not hasattr(socket, "MSG_CMSG_CLOEXEC"):
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
    return data, descriptors, message_flags


def knows_peers() -> bool:
    """Whether `user_of` works here."""
    return hasattr(socket, "SO_PEERCRED")


def user_of(connection: socket.socket) -> int | None:
    """Returns the user whose process is at the other end of a Unix socket; ``None`` if the system does not tell."""
    if not knows_peers():
        return None
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])
