"""Messages, channels and slots: data survives a round trip, and protocol violations are reported."""

from __future__ import annotations

import mmap
import os
import re
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sidecar_packets
from cases import every_case
from hypothesis import given, settings
from hypothesis import strategies as st
from sidecar_packets import BROKEN, golden, request

from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import SidecarError
from parquetry.common.base.platform.memory_file import memory_file
from parquetry.common.engine.columns.batch import Column, Dense, Ragged, Strings
from parquetry.common.plan.order.cursor import Cursor, Origin
from parquetry.common.schema.element import OutputField
from parquetry.common.transport.sidecar import client, protocol
from parquetry.common.transport.sidecar.channel import Channel
from parquetry.common.transport.sidecar.protocol import (
    MAX_BODY_BYTES,
    BatchHeader,
    Message,
    MessageType,
    RemoteError,
    Role,
    Start,
    Started,
    pack,
    unpack,
)
from parquetry.common.transport.sidecar.slots import SlotMemory, read_table, write_table
from parquetry.common.transport.sidecar.worker_process import StreamChannel

TEXT = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()
SIZES = {"u16": 2, "u32": 4, "u64": 8}

u64 = st.integers(0, 2**64 - 1)
messages = st.builds(
    Message,
    type=st.sampled_from(MessageType),
    generation=u64,
    a=u64,
    b=u64,
    body=st.binary(max_size=300),
    descriptor=st.none() | st.integers(0, 1000),
)


# --- messages ---


@given(messages)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    assert unpack(pack(message), [] if message.descriptor is None else [message.descriptor]) == message


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_negative_number_survives_the_unsigned_field(number: int) -> None:
    message = unpack(pack(Message(type=MessageType.OPENED, a=number)), [])
    assert message.a == number % 2**64


def test_the_packet_begins_as_the_page_says() -> None:
    packet = pack(Message(type=MessageType.START, generation=7, a=1, b=2, body=b"xy"))
    assert packet[:4] == b"PQRY"
    assert packet == struct.pack("<IHHQQQII", protocol.MAGIC, 3, 2, 7, 1, 2, 2, 0) + b"xy"


@every_case(
    ("packet", "message"),
    [
        (b"short", "expected at least 40 bytes, got 5"),
        (b"HTTP" + bytes(36), "expected protocol version 3, got magic 0x50545448 version 0"),
        (struct.pack("<IHHQQQII", protocol.MAGIC, 9, 2, 0, 0, 0, 0, 0), "version 9. Trainer and sidecar must run the same"),
        (struct.pack("<IHHQQQII", protocol.MAGIC, 1, 2, 0, 0, 0, 0, 0), "version 1. Trainer and sidecar must run the same"),
        (struct.pack("<IHHQQQII", protocol.MAGIC, 3, 6, 0, 0, 0, 0, 0), r"expected one of the types \[1, 2, .*107\], got 6"),
        (struct.pack("<IHHQQQII", protocol.MAGIC, 3, 2, 0, 0, 0, 5, 0) + b"abc", "expected 5 bytes and 0 descriptors, got 3 and 0"),
        (struct.pack("<IHHQQQII", protocol.MAGIC, 3, 2, 0, 0, 0, 0, 1), "expected 0 bytes and 1 descriptors, got 0 and 0"),
    ],
)  # fmt: skip
def test_bytes_that_are_not_a_message_are_refused(packet: bytes, message: str) -> None:
    with pytest.raises(SidecarError, match=message):
        unpack(packet, [])


def test_a_body_that_is_too_large_is_refused() -> None:
    assert (
        len(pack(Message(type=MessageType.ERROR, body=bytes(protocol.MAX_BODY_BYTES)))) == 40 + protocol.MAX_BODY_BYTES
    )
    with pytest.raises(SidecarError, match="message ERROR: expected a body of at most 61440 bytes, got 61441"):
        pack(Message(type=MessageType.ERROR, body=bytes(protocol.MAX_BODY_BYTES + 1)))


# --- bodies ---

positions = st.integers(0, 2**63 - 1)
starts = st.builds(
    Start,
    cursor=st.builds(
        lambda iteration, passes, rows, start, worker, more: Cursor(
            iteration=iteration,
            origin=Origin(passes=passes, rows=rows),
            start=start,
            worker=worker,
            workers=worker + more,
        ),
        *[positions] * 4,
        st.integers(0, 1000),
        st.integers(1, 1000),
    ),
    merge=st.booleans(),
    state=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)
started = st.builds(Started, iteration=u64, most_slots=u64, before=st.text("{é}"), after=st.text("}:"))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
remote_errors = st.builds(RemoteError, name=st.text("abc"), text=texts)


@given(starts | started | remote_errors)
def test_a_body_comes_out_as_it_went_in(body: Start | Started | RemoteError) -> None:
    assert type(body).unpack(body.pack()) == body


@given(st.sampled_from([Start, Started, RemoteError, BatchHeader]), st.binary(max_size=80))
def test_any_bytes_are_a_body_or_a_clear_error(kind: Any, garbage: bytes) -> None:
    with suppress(SidecarError):
        kind.unpack(garbage)


@every_case(
    ("kind", "body", "message"),
    [
        (Start, b"", "message START: expected a body of 48 bytes and texts that fill it, got 0 bytes"),
        (Start, protocol.START.pack(0, 0, 0, 0, 0, 1, 2, 9) + b"short", r"got 53 bytes and texts of \[9\]"),
        (Start, protocol.START.pack(0, 0, 0, 0, 2, 2, 0, 0), "message START: expected one worker of several"),
        (Start, protocol.START.pack(0, 0, 0, 0, 0, 1, 4, 0), "and known flags"),
        (Started, protocol.STARTED.pack(0, 0, 2**32 - 1, 2) + b"x", r"texts of \[4294967295, 2\]"),
        (RemoteError, protocol.ERROR.pack(1, 1) + b"abc", "message ERROR: .* got 11 bytes"),
        (BatchHeader, bytes(33), "message BATCH: .* got 33 bytes"),
    ],
)
def test_a_body_with_wrong_lengths_is_refused(kind: Any, body: bytes, message: str) -> None:
    with pytest.raises(SidecarError, match=message):
        kind.unpack(body)


def test_the_bytes_of_every_message_stay_unchanged() -> None:
    at_cursor = Cursor(iteration=1, origin=Origin(passes=2, rows=300), start=40, worker=1, workers=5)
    batch = BatchHeader(
        slot_bytes=65536, table_offset=4096, first_element=1 << 40, num_tensors=3, num_elements=64, num_rows=2048
    )
    later = batch._replace(table_offset=8320, first_element=(1 << 40) + 64, num_elements=1, num_rows=32)
    begun = Started(iteration=4, most_slots=6, before='{"é":1,"consumed":', after="}")
    error = RemoteError(name="DatasetError", text="file 'é': not there.\nLook.")
    expected = {
        "open": Message(type=MessageType.OPEN, a=1234, descriptor=9),
        "start": _message(MessageType.START, 1, Start(cursor=Cursor(iteration=3), merge=False)),
        "start_at_cursor": _message(MessageType.START, 2, Start(cursor=at_cursor, merge=True)),
        "start_at_state": _message(MessageType.START, 258, Start(cursor=Cursor(), merge=True, state='{"a": "é"}')),
        "release": Message(type=MessageType.RELEASE, generation=7, a=6),
        "stop": Message(type=MessageType.STOP, generation=7),
        "close": Message(type=MessageType.CLOSE),
        "opened": Message(type=MessageType.OPENED, a=2**64 + protocol.INFINITE),
        "started": _message(MessageType.STARTED, 7, begun, a=2**64 + protocol.UNKNOWN, b=12),
        "slot": Message(type=MessageType.SLOT, generation=7, a=6, b=65536, descriptor=9),
        "batch": _message(MessageType.BATCH, 7, batch, a=6),
        "batches": Message(type=MessageType.BATCH, generation=7, a=6, body=batch.pack() + later.pack()),
        "end": Message(type=MessageType.END, generation=7),
        "error": _message(MessageType.ERROR, 7, error),
        "error_of_one_element": _message(MessageType.ERROR, 7, RemoteError(name="DecodeError", text=""), a=1, b=13),
    }
    assert {name: pack(message) for name, message in expected.items()} == golden()
    for name, message in expected.items():
        assert unpack(golden()[name], [] if message.descriptor is None else [9]) == message


def _message(kind: MessageType, generation: int, body: Any, *, a: int = 0, b: int = 0) -> Message:
    return Message(type=kind, generation=generation, a=a, b=b, body=body.pack())


@every_case("name", BROKEN)
def test_a_sidecar_that_breaks_the_protocol_is_one_clear_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, sidecar_packets.__file__]
    monkeypatch.setattr(client, "python_command", lambda module, *arguments: [*command, *arguments])
    with pytest.raises(SidecarError, match=r"^sidecar \(process \d+\) broke the protocol: .*Begin a new it") as caught:
        _read(request(BROKEN[name]))
    if name == "another version":
        assert "expected protocol version 3, got magic 0x59525150 version 1. Trainer and side" in str(caught.value)


def _read(wanted: str) -> None:
    sidecar = client.SidecarClient(wanted.encode())
    sidecar.start(Start(cursor=Cursor(), merge=True))
    while sidecar.next_batches((_output("x", "dense", np.int64, (4,)),)) is not None:
        pass


# --- the page ---


def _table(title: str) -> list[list[str]]:
    part = TEXT[TEXT.index(title) :]
    rows = re.findall(r"^\|(.+)\|$", part, re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    return [row for row in cells if re.fullmatch(r"\d+", row[0])]


def test_the_page_has_every_message_type() -> None:
    found = dict(re.findall(r"^\| (\d+) \| ([A-Z]+) \| to ", TEXT, re.MULTILINE))
    assert {int(number): name for number, name in found.items()} == {kind.value: kind.name for kind in MessageType}


def test_the_page_has_every_role_and_dtype() -> None:
    roles = dict(re.findall(r"^\| (\d) \| ([A-Z_]+) \| ", TEXT, re.MULTILINE))
    assert {int(number): name for number, name in roles.items()} == {role.value: role.name for role in Role}
    (line,) = re.findall(r"^\| 4 \| u16 \| dtype \| (.*) \|$", TEXT, re.MULTILINE)
    assert {name: int(code) for code, name in re.findall(r"(\d+) (\w+)", line)} == protocol.DTYPE_CODES


@every_case(
    ("title", "form"),
    [
        ("## Message", protocol.HEADER),
        ("### START", protocol.START),
        ("### STARTED", protocol.STARTED),
        ("### ERROR", protocol.ERROR),
        ("## Batch", protocol.BATCH),
    ],
)
def test_the_page_has_the_layout_of_the_headers(title: str, form: struct.Struct) -> None:
    rows = [row for row in _table(title) if row[1] in SIZES][: len(form.unpack(bytes(form.size)))]
    sizes = [{"I": 4, "H": 2, "Q": 8}[code] for code in form.format.lstrip("<")]
    assert [SIZES[row[1]] for row in rows] == sizes
    assert [int(row[0]) for row in rows] == [sum(sizes[:number]) for number in range(len(sizes))]


def test_the_page_has_the_layout_of_the_tensor_table() -> None:
    rows = {row[2]: int(row[0]) for row in _table("### Tensor table")[:7]}
    assert protocol.ENTRY.fields is not None
    assert rows == {name: offset for name, (_, offset) in protocol.ENTRY.fields.items()}
    assert protocol.ENTRY.itemsize == protocol.ENTRY_BYTES == 96


# --- channels ---


def test_a_descriptor_travels_with_its_message() -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    descriptor = memory_file("test")
    os.write(descriptor, b"hello")
    ours.send(Message(type=MessageType.SLOT, a=3, descriptor=descriptor))
    os.close(descriptor)
    received = theirs.receive()
    assert received is not None
    assert received.descriptor is not None
    assert os.pread(received.descriptor, 10, 0) == b"hello"
    os.close(received.descriptor)
    ours.close()
    assert theirs.receive() is None
    theirs.close()
    theirs.close()


def test_the_stream_between_reader_and_worker_carries_messages_of_any_size() -> None:
    ours, theirs = (StreamChannel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    large = {"do": "job", "cells": np.arange(1_000_000)}
    sender = threading.Thread(target=ours.send, args=(large,))
    sender.start()
    received = theirs.receive()
    sender.join()
    assert received is not None
    assert_same(received[0], large)
    ours.close()
    assert theirs.receive() is None
    theirs.close()


# --- slots ---


def _output(name: str, kind: Any, dtype: Any, shape: tuple[int | None, ...], window: int | None = None) -> OutputField:
    return OutputField(path=(name,), kind=kind, dtype=np.dtype(dtype), shape=shape, window=window, nullable=True)


def _strings(*texts: bytes, shape: tuple[int, ...] | None = None, valid: Any = None) -> Strings:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)])
    return Strings(offsets, np.frombuffer(b"".join(texts), np.uint8), shape or (len(texts),), valid)


MASK = np.array([True, False, True])
COLUMNS: dict[str, tuple[OutputField, Column]] = {
    **{name: (_output("x", "dense", name, ()), Dense(np.arange(3).astype(name))) for name in protocol.DTYPE_CODES},
    "image": (_output("x", "dense", np.uint8, (2, 3, 3)), Dense(np.arange(54, dtype=np.uint8).reshape(3, 2, 3, 3))),
    "nulls": (_output("x", "dense", np.float32, ()), Dense(np.ones(3, np.float32), MASK)),
    "not contiguous": (_output("x", "dense", np.int64, (2,)), Dense(np.arange(6).reshape(2, 3).T)),
    "nothing": (_output("x", "dense", np.int64, (0,)), Dense(np.zeros((3, 0), np.int64))),
    "text": (_output("x", "text", object, ()), _strings(b"a", b"", "é".encode())),
    "text with nulls": (_output("x", "text", object, ()), _strings(b"a", b"", b"c", valid=MASK)),
    "fixed texts": (_output("x", "text", object, (2,)), _strings(b"a", b"b", b"", b"d", b"e", b"f", shape=(3, 2))),
    "windows of text": (_output("x", "bytes", object, (), 1), _strings(b"a", b"b", b"c", shape=(3, 1), valid=MASK[:, None])),
    "ragged": (_output("x", "dense", np.int16, (None, 2)), Ragged(np.array([[1, 2], [0, 2], [2, 2]]), np.arange(6, dtype=np.int16), (3,))),
    "ragged with nulls": (_output("x", "dense", np.int16, (None,)), Ragged(np.array([[1], [0], [2]]), np.arange(3, dtype=np.int16), (3,), MASK)),
    "ragged text": (_output("x", "text", object, (None,)), Ragged(np.array([[1], [0], [2]]), _strings(b"a", b"bc", b""), (3,), MASK)),
    "ragged windows": (_output("x", "dense", np.int8, (None,), 3), Ragged(np.array([[1], [0], [2]]), np.arange(3, dtype=np.int8), (1, 3), MASK[None])),
}  # fmt: skip


def _slot() -> SlotMemory:
    return SlotMemory(memory_file("test"))


def _through_a_slot(slot: SlotMemory, outputs: list[OutputField], columns: list[Column]) -> list[Column]:
    slot.begin()
    header = write_table(slot, columns, first_element=5, num_elements=1, num_rows=3)
    header = BatchHeader.unpack(header.pack())
    memory = mmap.mmap(slot.descriptor, header.slot_bytes)
    table = np.frombuffer(memory, protocol.ENTRY, header.num_tensors, header.table_offset)
    assert header.table_offset % 64 == 0
    assert (table["offset"] % 64 == 0).all()
    assert header.first_element == 5
    return read_table(memory, header, outputs)


@every_case("name", COLUMNS)
def test_every_kind_of_column_comes_out_of_a_slot_as_it_went_in(name: str) -> None:
    output, column = COLUMNS[name]
    slot = _slot()
    for _ in range(2):
        (found,) = _through_a_slot(slot, [output], [column])
        _assert_same_column(found, column)
    slot.close()
    slot.close()


def test_a_batch_of_all_columns_grows_the_slot_and_keeps_every_field_apart() -> None:
    outputs, columns = map(list, zip(*COLUMNS.values(), strict=True))
    slot = _slot()
    sizes = []
    for _ in range(3):
        for found, column in zip(_through_a_slot(slot, outputs, columns), columns, strict=True):
            _assert_same_column(found, column)
        sizes.append(slot.num_bytes)
    assert sizes[1] == sizes[2] > 0
    large = Dense(np.arange(1 << 20))
    _assert_same_column(_through_a_slot(slot, [_output("x", "dense", np.int64, ())], [large])[0], large)
    assert slot.num_bytes > sizes[2]
    slot.close()


def _assert_same_column(found: Column, expected: Column) -> None:
    assert type(found) is type(expected)
    for name in expected.__slots__:
        mine, theirs = getattr(found, name), getattr(expected, name)
        if isinstance(theirs, Strings):
            _assert_same_column(mine, theirs)
        else:
            assert_same(mine, theirs, name)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from([np.uint8, np.int64, np.float16])), max_size=8))
def test_arrays_allocated_in_a_slot_are_aligned_and_do_not_overlap(wanted: list[tuple[int, Any]]) -> None:
    slot = _slot()
    slot.begin()
    arrays = [slot.allocate(np.dtype(dtype), (count,)) for count, dtype in wanted]
    for number, array in enumerate(arrays):
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()
        assert slot.place(array) % 64 == 0
    slot.close()


def test_a_view_that_begins_inside_an_array_is_copied_to_a_place_of_its_own() -> None:
    slot = _slot()
    slot.begin()
    array = slot.allocate(np.dtype(np.float32), (1, 4))
    array[...] = [[1, 2, 3, 4]]
    view = array[:, 1:]  # one row, and so contiguous
    assert view.flags.c_contiguous
    output = _output("x", "dense", np.float32, (3,))
    header = write_table(slot, [Dense(view)], first_element=0, num_elements=1, num_rows=1)
    memory = mmap.mmap(slot.descriptor, header.slot_bytes)
    table = np.frombuffer(memory, protocol.ENTRY, header.num_tensors, header.table_offset)
    assert table["offset"][0] % 64 == 0
    (found,) = read_table(memory, header, [output])
    _assert_same_column(found, Dense(np.array([[2, 3, 4]], np.float32)))
    slot.close()


def test_more_axes_than_the_protocol_holds_are_refused() -> None:
    slot = _slot()
    slot.begin()
    with pytest.raises(SidecarError, match="expected at most 8 axes, got shape"):
        write_table(slot, [Dense(np.zeros((1,) * 9))], first_element=0, num_elements=1, num_rows=1)
    slot.close()


@given(
    text=st.builds(
        lambda head, middle, count, end: head + middle * count + end,
        st.text(max_size=20),
        st.text(min_size=1, max_size=3) | st.sampled_from(["\0", '"', "错", "😀", "\ud800"]),
        st.integers(0, 70_000),
        st.text(max_size=20),
    )
)
@settings(max_examples=25, deadline=None)
def test_an_error_of_any_length_fits_and_keeps_its_beginning_and_its_end(text: str) -> None:
    body = RemoteError(name="TransformError", text=text).pack()
    assert len(body) <= MAX_BODY_BYTES
    found = RemoteError.unpack(body).text
    sent = text.encode(errors="backslashreplace").decode().replace("\0", "\\0")
    if found == sent:
        return
    head, tail = found.split("\n[... cut ...]\n")
    assert sent.startswith(head)
    assert sent.endswith(tail)
    assert min(len(head), len(tail)) >= 2_000
    assert len(body) > MAX_BODY_BYTES - 12  # one more character would not fit


def test_the_longest_message_and_one_longer() -> None:
    longest = MAX_BODY_BYTES - len(RemoteError(name="SidecarError", text="").pack())
    whole, cut = (RemoteError(name="SidecarError", text="x" * length).pack() for length in (longest, longest + 1))
    assert RemoteError.unpack(whole).text == "x" * longest
    assert "[... cut ...]" in RemoteError.unpack(cut).text
