"""A decode worker: forked from the reader, or ``python -m parquetry.common.transport.sidecar.worker --fd N``.

It receives the program once, and then blocks (shared memory) and jobs. It decodes each job straight into the job's
slot, unless a user function comes in between. Alternatively, it receives one function and then the arguments of each
call. It ends with its reader.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa

from ...base.errors import ParquetryError, ResourceError, TransformError, limit_reached
from ...base.memory.arena import SHARED_REGIONS
from ...base.metrics.counters import Count, Counters, add_time
from ...base.process.exit_watch import end_with_parent
from ...engine.columns.batch import Column
from ...engine.run.assemble import assemble
from ...engine.run.block import BlockParts, LoadedBlock, block_by_row
from ...engine.steps.source import BlockSlice
from ...plan.program import ElementProgram, MixedProgram, leaves_of
from .shared_blocks import open_exported
from .slots import SlotMemory, write_tables
from .worker_process import StreamChannel, exit_with


class Worker:
    """The state of one worker process: its program, and the blocks and slots that it has mapped."""

    def __init__(self, channel: StreamChannel) -> None:
        self._channel = channel
        self._program: ElementProgram | MixedProgram | None = None
        self._memory_bytes = 0
        self._blocks: dict[int, LoadedBlock] = {}
        self._slots: dict[int, SlotMemory] = {}
        self._called: Callable[[Any], Any] = partial(_raise, ParquetryError("worker: no function was sent."))

    def run(self) -> None:
        """Handles messages until the reader is gone."""
        while True:
            received = self._channel.receive()
            if received is None:
                return
            message, descriptor = received
            getattr(self, "_" + message["do"])(message, descriptor)

    def _open(self, message: dict[str, Any], _: int | None) -> None:
        sys.path[:] = message["sys_path"]
        self._memory_bytes = message["memory_bytes"]
        try:
            self._program = pickle.loads(message["program"])
        except ParquetryError as error:  # a user function
            self._channel.send({"failed": error})
            return
        except Exception as error:
            self._channel.send({"failed": ParquetryError(f"worker could not load its program: {error!r}")})
            return
        self._channel.send({"ready": os.getpid()})

    def _block(self, message: dict[str, Any], descriptor: int | None) -> None:
        assert descriptor is not None
        assert self._program is not None
        parts, places, rows, row_groups = open_exported(descriptor)
        program = leaves_of(self._program)[message["source"]]
        self._blocks[message["id"]] = block_by_row(
            BlockParts(
                parts,
                places,
                rows,
                program.fields,
                row_groups=row_groups,
                program=program,
                max_value_bytes=program.max_value_bytes,
                memory_bytes=self._memory_bytes,
            )
        )

    def _forget(self, message: dict[str, Any], _: int | None) -> None:
        for number in message["ids"]:
            self._blocks.pop(number, None)

    def _slot(self, message: dict[str, Any], descriptor: int | None) -> None:
        assert descriptor is not None
        self._slots[message["id"]] = SlotMemory(descriptor)

    def _count(self, message: dict[str, Any], descriptor: int | None) -> None:
        assert descriptor is not None
        try:
            Counters(descriptor).bind()
        finally:
            os.close(descriptor)

    def _job(self, message: dict[str, Any], _: int | None) -> None:
        assert self._program is not None
        try:
            slot = self._slots[message["slot"]]
            slot.begin()
            sources = [replace(source, block=self._blocks[source.block]) for source in message["sources"]]
            columns = self._assemble(sources, message["count"], slot)
            begin = time.perf_counter()
            parts = [(columns, message["num_elements"], message["count"])]
            [header] = write_tables(slot, parts, first_element=message["first_element"])
            add_time(Count.HAND_OVER_S, begin)
        except ParquetryError as error:
            self._channel.send({"failed": error})
        except Exception as error:  # any error belongs in the trainer's traceback
            limit = limit_reached(error)
            failed = ResourceError(f"worker: {error!r}. {limit}") if limit else ParquetryError(f"worker: {error!r}")
            self._channel.send({"failed": failed})
        else:
            self._channel.send({"done": header})

    def _function(self, message: dict[str, Any], _: int | None) -> None:
        sys.path[:] = message["sys_path"]
        try:
            self._called = pickle.loads(message["function"])
        except Exception as error:
            self._called = partial(_raise, error)

    def _call(self, message: dict[str, Any], _: int | None) -> None:
        try:
            answer = {"done": self._called(message["argument"])}
        except Exception as error:
            answer = {"failed": error}
        self._channel.send_pickled(_pickled(answer))

    def _assemble(self, sources: list[BlockSlice], count: int, slot: SlotMemory) -> list[Column]:
        """Assembles the columns straight in the slot, unless a user function sees them.

        A function may keep its arguments, and slots are reused.
        """
        assert self._program is not None
        if not self._program.has_user_code:
            return assemble(self._program, sources, count, slot)
        region = SHARED_REGIONS.acquire()
        try:
            return assemble(self._program, sources, count, region)
        finally:
            region.end()


def _raise(error: Exception, _: object) -> None:
    raise error


def _pickled(answer: dict[str, Any]) -> bytes:
    """Pickles an answer that may hold values of user classes, or an error that says why they cannot be pickled."""
    try:
        data: bytes = cloudpickle.dumps(answer, protocol=5)
        if "failed" in answer:
            pickle.loads(data)  # an exception that cannot be unpickled would look like a dead worker
        return data
    except Exception as error:
        text = "".join(traceback.format_exception(answer.get("failed", error))).rstrip()
        return pickle.dumps({"failed": TransformError(f"worker process: a result could not be sent back.\n{text}")})


def work(connection: socket.socket) -> None:
    """Serves the reader at the other end until it is gone."""
    end_with_parent()
    # The trainer handles Ctrl-C and ends this process by closing the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with(connection)
    pa.set_cpu_count(1)
    with suppress(BrokenPipeError, ConnectionResetError):  # the reader ended during an answer
        Worker(StreamChannel(connection)).run()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="decode worker of parquetry's sidecar")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the reader's socket")
    work(socket.socket(fileno=parser.parse_args().fd))


if __name__ == "__main__":
    main()
