"""`forbid_memfd`: makes the system refuse memory files, as sandboxes do. Call it in a process of the test's own."""

from __future__ import annotations

import ctypes
import errno
import os

_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _SKIP_UNLESS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
can_forbid = os.uname().machine in _MEMFD_CREATE


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def forbid_memfd(error: int = errno.ENOSYS) -> None:
    """Makes memfd_create(2) fail from now on, in this process and in those that it starts."""
    instructions = (_Instruction * 4)(
        _Instruction(_LOAD, 0, 0, 0),  # the number of the call
        _Instruction(_SKIP_UNLESS_EQUAL, 0, 1, _MEMFD_CREATE[os.uname().machine]),
        _Instruction(_RETURN, 0, 0, _ERRNO | error),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.byref(_Program(len(instructions), instructions))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
