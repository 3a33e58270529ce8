"""Copies to a device: the protocol `DeviceCopies` (streams, events, page-locked memory), and its version for torch.

`prefetch` uses only this protocol, so tests can replace the device with one whose copies they delay.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
import re
from typing import Any, Protocol, TypeAlias

import torch

from parquetry.common.base.errors import PipelineError

from .pinned_regions import PageLock

_LOG = logging.getLogger(__name__)
_PORTABLE = 1  # cudaHostRegisterPortable: locked for the contexts of all devices
_KERNEL = (5, 10)  # before, a page that is locked and then written after a fork moves away from under the device
Stream: TypeAlias = Any
"""A stream of a device. Each of torch's back ends has a class of its own for it."""
Event: TypeAlias = Any
"""A point in a stream; again a class of the back end."""


class DeviceCopies(Protocol):
    """Copies to one device. Called by the thread that iterates; one call at a time.

    Streams and events are the device's own: work on a stream runs in order, and an event marks a point in it.

    Attributes:
        device: where copies go, with its index.
        page_lock: locks memory for the device; ``None`` if it cannot.
    """

    device: torch.device
    page_lock: PageLock | None

    def current_stream(self) -> Stream:
        """Returns the stream that the calling thread's next work on the device runs on."""

    def side_stream(self) -> Stream:
        """Returns the stream for copies; the same one each time."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor if it lies in page-locked memory, and a page-locked copy otherwise."""

    def copy(self, tensor: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Enqueues a copy on the stream. The source must live, unchanged, until an event after it has happened."""

    def record(self, stream: Stream) -> Event:
        """Returns an event that happens when all work enqueued on the stream so far is done."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Makes later work on the stream wait for the event; returns at once."""

    def keep_for(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keeps the copy's memory, when it is dropped, until the work enqueued on the stream by then is done."""

    def is_done(self, event: Event) -> bool:
        """Whether the event has happened."""

    def finish(self, event: Event) -> None:
        """Waits until the event has happened."""


def copies_to(device: torch.device | str | int) -> DeviceCopies | None:
    """Returns how to copy to a device; ``None`` for the CPU, where batches already are.

    Raises:
        PipelineError: torch has no such device here.
    """
    try:
        kind = torch.device(device).type
        if kind == "cpu":
            return None
        if kind == "meta":
            raise ValueError("it has no data")
        indexed = torch.empty(0, device=device).device  # with its index
        return Accelerator(indexed)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise PipelineError(
            f"prefetch_to_device: expected a device that this torch can copy to, got {device!r}: {error}"
        ) from error


class Accelerator:
    """A device with streams: CUDA, ROCm, XPU, and any other with torch's stream interface.

    Raises:
        RuntimeError, NotImplementedError: it has no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.page_lock: PageLock | None = CudaPageLock(device) if device.type == "cuda" else None
        self._module = getattr(torch, device.type, None)
        self._is_generic = hasattr(torch, "accelerator") and hasattr(torch.Stream, "__enter__")  # torch 2.7
        if not self._is_generic and not hasattr(self._module, "Stream"):
            raise NotImplementedError(f"torch {torch.__version__} has no streams for it. Use a later version.")
        self._side = torch.Stream(device=device) if self._is_generic else self._module.Stream(device)  # type: ignore[union-attr]

    def current_stream(self) -> Stream:
        if self._is_generic:
            return torch.accelerator.current_stream(self.device)
        return self._module.current_stream(self.device)  # type: ignore[union-attr]

    def side_stream(self) -> Stream:
        return self._side

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_pinned() else tensor.pin_memory()

    def copy(self, tensor: torch.Tensor, stream: Stream) -> torch.Tensor:
        with stream if self._is_generic else self._module.stream(stream):  # type: ignore[union-attr]
            return tensor.to(self.device, non_blocking=True)

    def record(self, stream: Stream) -> Event:
        return stream.record_event()

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def keep_for(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def is_done(self, event: Event) -> bool:
        return bool(event.query())

    def finish(self, event: Event) -> None:
        event.synchronize()


class CudaPageLock:
    """Locks memory by ``cudaHostRegister`` (CUDA Runtime API, "Memory Management"; ROCm has the same function).

    Args:
        device: whose context is used; threads that decode have none, and would make one on the first device.
        runtime: provides ``cudaHostRegister`` and ``cudaHostUnregister``; torch's by default.
    """

    def __init__(self, device: torch.device, runtime: object = None) -> None:
        self._device = device
        self._runtime = runtime
        self._has_warned = False

    def lock(self, address: int, size_bytes: int) -> bool:
        if not _keeps_pages():
            return False
        code = self._call("cudaHostRegister", address, size_bytes, _PORTABLE)
        if code and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "prefetch_to_device: cannot lock %d bytes of memory (CUDA error %d), so batches are copied to "
                "page-locked memory first. Free memory of this host, or make batches smaller.",
                size_bytes,
                code,
            )
        return not code

    def unlock(self, address: int) -> None:
        self._call("cudaHostUnregister", address)

    def _call(self, name: str, *args: int) -> int:
        """Calls a function of the runtime; returns its error code, which torch then does not see."""
        if self._runtime is not None:
            return int(getattr(self._runtime, name)(*args))
        with torch.cuda.device(self._device):
            code = int(getattr(torch.cuda.cudart(), name)(*args))
            if code:
                _clear_cuda_error()
        return code


@functools.cache
def _keeps_pages() -> bool:
    """Whether the parent keeps its locked pages in a fork (Linux 70e806e4e645, "Do early cow for pinned pages")."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    return platform.system() != "Linux" or (numbers is not None and tuple(map(int, numbers.groups())) >= _KERNEL)


def _clear_cuda_error() -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # ROCm, or another name of the library
        major = str(torch.version.cuda).partition(".")[0]
        ctypes.CDLL(f"libcudart.so.{major}").cudaGetLastError()
