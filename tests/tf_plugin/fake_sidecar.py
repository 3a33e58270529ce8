"""A sidecar that reads no data: it implements ``docs/protocol.md`` and derives every value from its row number.

Run as ``python fake_sidecar.py --fd N``. The request is ``{"fake": spec}``; `fake_request` in ``conftest.py`` builds
and documents specs. Slots are always overwritten, so a tensor that outlives its lease shows wrong values.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import types
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def import_protocol():
    """Imports the protocol's Python side without the rest of the package, which imports too slowly for a test."""
    for name in ("parquetry", "parquetry.common", "parquetry.common.sidecar"):
        folder = ROOT.joinpath(*name.split(".")[1:])
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    return importlib.import_module("parquetry.common.transport.sidecar.protocol")


P = import_protocol()


class Slot:
    def __init__(self, number: int) -> None:
        self.number = number
        self.fd = os.memfd_create(f"fake-slot-{number}")
        self.bytes = 0
        self.announced = False

    def reserve(self, size: int) -> None:
        size = (size + 4095) // 4096 * 4096
        if size > self.bytes:
            os.ftruncate(self.fd, size)
            self.map = mmap.mmap(self.fd, size)
            self.bytes = size


def field_tensors(field, rows: np.ndarray, batched_lead: tuple[int, ...]):
    """Returns ``(role, array, dims)`` of one field for these rows; ``dims`` is ``None`` if it is the array's shape."""
    window = field.get("window")
    cells = rows if window is None else (rows[:, None] + np.arange(window)).reshape(-1)
    lead = batched_lead if window is None else (*batched_lead, window)
    kind, shape = field["kind"], field.get("shape", [])
    if None in shape:
        lengths = [[int(cell) % 4 if axis is None else axis for axis in shape] for cell in cells]
        shapes = np.array(lengths, np.int64).reshape(len(cells), len(shape))
        counts = shapes.prod(axis=1)
        flat = np.repeat(cells, counts)
        yield P.Role.RAGGED_SHAPES, shapes, None
        if kind == "text":
            yield from strings(flat, (len(flat),))
        else:
            yield P.Role.RAGGED_VALUES, flat.astype(field["dtype"]), None
    elif kind == "text":
        size = int(np.prod(shape, dtype=np.int64))
        yield from strings(np.repeat(cells, size), (*lead, *shape))
    else:
        values = np.broadcast_to(cells.reshape(*lead, *(1 for _ in shape)), (*lead, *shape))
        yield P.Role.DENSE, np.ascontiguousarray(values, dtype=field["dtype"]), None
    if field.get("null"):
        yield P.Role.VALID, np.zeros(lead, np.bool_), None


def strings(numbers, dims):
    texts = [f"row-{number}".encode() for number in numbers]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    yield P.Role.STRING_OFFSETS, offsets, dims
    yield P.Role.STRING_DATA, np.frombuffer(b"".join(texts), np.uint8), None


class Fake:
    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.slots: list[Slot] = []
        self.free: list[int] = []
        self.generation = 0
        self.running = False

    def run(self) -> None:
        message = self.receive()
        with os.fdopen(message.descriptor, "rb") as file:
            file.seek(0)
            self.spec = json.loads(file.read(message.a))["fake"]
        if "stderr" in self.spec:
            print(self.spec["stderr"], file=sys.stderr, flush=True)
        if "exit_at_open" in self.spec:
            sys.exit(self.spec["exit_at_open"])
        if "open_error" in self.spec:
            self.send_error(self.spec["open_error"])
            return
        self.slots = [Slot(number) for number in range(self.spec["slots"])]
        self.free = list(range(len(self.slots)))
        self.send(P.MessageType.OPENED, a=self.elements())
        while True:
            ready = self.running and self.free and not self.hanging()
            if not ready or select.select([self.socket], [], [], 0)[0]:
                message = self.receive()
                if message is None or message.type == P.MessageType.CLOSE:
                    return
                self.obey(message)
            else:
                self.step()

    def elements(self) -> int:
        if self.spec.get("unknown"):
            return P.UNKNOWN
        total, batch = self.spec["rows"], self.spec["batch"]
        if total < 0 or not self.spec["batched"]:
            return total
        return -(-total // batch)

    def obey(self, message) -> None:
        if message.type == P.MessageType.START:
            wanted = P.Start.unpack(message.body)
            self.log({"iteration": wanted.cursor.iteration, "state": wanted.state, "merge": wanted.merge})
            if self.spec.get("silent_start"):
                return
            state = {"iteration": wanted.cursor.iteration, "consumed": 0}
            if wanted.state is not None:
                state = json.loads(wanted.state)
            self.generation, self.iteration, self.at = message.generation, state["iteration"], state["consumed"]
            if state.get("of", self.spec["name"]) != self.spec["name"]:
                self.running = False
                self.send_error(
                    {"error": "StateError", "message": 'state: expected one of this "dataset", got another.'}
                )
                return
            self.running = True
            self.merge = self.spec.get("merge", 1) if wanted.merge else 1
            started = P.Started(
                iteration=self.iteration,
                most_slots=len(self.slots) if self.spec["promise_slots"] else 0,
                before=f'{{"of": "{self.spec["name"]}", "iteration": {self.iteration}, "consumed": ',
                after="}",
            )
            left = self.elements() if self.elements() < 0 else self.elements() - self.at
            self.send(P.MessageType.STARTED, a=left, b=self.at, body=started.pack())
        elif message.type == P.MessageType.RELEASE:
            assert message.a not in self.free, "a slot was released twice"
            self.slots[message.a].map[:] = b"\xee" * self.slots[message.a].bytes
            self.free.append(message.a)
        elif message.type == P.MessageType.STOP:
            self.log({"stop": self.generation})
            self.running = False

    def hanging(self) -> bool:
        return self.at == self.spec.get("hang_at", -1)

    def step(self) -> None:
        spec = self.spec
        if spec["rows"] >= 0 and self.at * (spec["batch"] if spec["batched"] else 1) >= spec["rows"]:
            self.running = False
            self.send(P.MessageType.END)
            return
        if self.at == spec.get("kill_at", -1):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.at == spec.get("exit_at", -1):
            sys.exit(7)
        if self.at >= spec.get("error_at", 1 << 60):
            self.running = False
            self.send_error(spec["error"])
            return
        if self.at in spec.get("fails_at", ()):
            self.at += 1
            self.send_error(spec["error"], elements=1, position=self.at)
            return
        if spec.get("leap_at") == self.at:  # rows are skipped
            self.at += spec["leap"]
        stride = spec["batch"] if spec["batched"] else 1
        begin = self.at * stride
        merged = max(1, min(self.merge, (spec["rows"] - begin) // spec["batch"])) if spec["rows"] >= 0 else self.merge
        size = spec["batch"] * merged
        end = begin + size if spec["rows"] < 0 else min(begin + size, spec["rows"])
        rows = np.arange(begin, end) + self.iteration * spec["epoch_offset"]
        number = self.free.pop(0)
        slot = self.slots[number]
        if spec.get("apart") and spec["batched"]:  # a table for each element
            parts = [(rows[at : at + spec["batch"]], 1) for at in range(0, len(rows), spec["batch"])]
        else:
            parts = [(rows, merged if spec["batched"] else len(rows))]
        body = self.write(slot, parts)
        if not slot.announced:
            slot.announced = True
            self.send(P.MessageType.SLOT, a=number, b=slot.bytes, descriptor=slot.fd)
        self.send(P.MessageType.BATCH, a=number, body=body)
        self.at += merged if spec["batched"] else len(rows)

    def write(self, slot: Slot, parts: list[tuple[np.ndarray, int]]) -> bytes:
        begin, first, headers = 0, self.at + (5 if self.spec.get("wrong_first") else 0), []
        for rows, elements in parts:
            tensors, end = self.write_table(slot, rows, begin)
            headers.append((begin, first, tensors, elements, len(rows)))
            begin, first = end, first + elements
        return b"".join(
            P.BatchHeader(
                slot_bytes=slot.bytes,
                table_offset=table_offset,
                first_element=first,
                num_tensors=num_tensors,
                num_elements=num_elements,
                num_rows=num_rows,
            ).pack()
            for table_offset, first, num_tensors, num_elements, num_rows in headers
        )

    def write_table(self, slot: Slot, rows: np.ndarray, begin: int) -> tuple[int, int]:
        """Writes a table and its tensors from ``begin`` on. Returns the number of tensors, and where they end."""
        tensors = [
            (number, role, array, dims)
            for number, field in enumerate(self.spec["fields"])
            for role, array, dims in field_tensors(field, rows, (len(rows),))
        ]
        table = np.zeros(len(tensors), P.ENTRY)
        offset = begin + (table.nbytes + 63) // 64 * 64
        for entry, (number, role, array, dims) in zip(table, tensors, strict=True):
            shape = array.shape if dims is None else dims
            entry["field"], entry["role"], entry["dtype"] = number, role, P.DTYPE_CODES[array.dtype.name]
            entry["ndim"], entry["offset"], entry["bytes"] = len(shape), offset, array.nbytes
            entry["dims"][: len(shape)] = shape
            offset += (array.nbytes + 63) // 64 * 64
        if self.spec.get("corrupt"):
            table["offset"][0] = 1 << 40
        slot.reserve(offset)
        slot.map[begin : begin + table.nbytes] = table.tobytes()
        for entry, (_, _, array, _) in zip(table, tensors, strict=True):
            if not self.spec.get("corrupt"):
                slot.map[int(entry["offset"]) : int(entry["offset"]) + array.nbytes] = array.tobytes()
        return len(tensors), offset

    def log(self, event) -> None:
        if "log" in self.spec:
            with open(self.spec["log"], "a") as file:
                file.write(json.dumps({"pid": os.getpid(), **event}) + "\n")

    def send_error(self, error, *, elements: int = 0, position: int = 0) -> None:
        body = P.RemoteError(name=error["error"], text=error["message"]).pack()
        self.send(P.MessageType.ERROR, a=elements, b=position, body=body)

    def send(self, kind, *, a: int = 0, b: int = 0, body: bytes = b"", descriptor: int | None = None) -> None:
        message = P.Message(type=kind, generation=self.generation, a=a, b=b, body=body, descriptor=descriptor)
        if descriptor is None:
            self.socket.sendall(P.pack(message))
        else:
            socket.send_fds(self.socket, [P.pack(message)], [descriptor])

    def receive(self):
        packet, descriptors, _, _ = socket.recv_fds(self.socket, P.HEADER.size + P.MAX_BODY_BYTES, 1)
        return P.unpack(packet, descriptors) if packet else None


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the trainer left during a send
        Fake(int(sys.argv[sys.argv.index("--fd") + 1])).run()
