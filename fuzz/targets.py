"""One harness per parser: it takes bytes, and must return a value or raise an error that the parser's caller expects.

`TARGETS` maps names to harnesses. Any other exception is a finding, and so is a hang, or memory allocated only because
the bytes claim a size. Inputs with a checksum get the right one, so they reach the parser behind it.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import shutil
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.tools.tfrecord import tfrecord_rows
from parquetry.common.base.errors import DatasetError, ParquetryError, SchemaError, SidecarError, StateError
from parquetry.common.dataset.bitmaps import decode_bitmap64
from parquetry.common.dataset.deletes import _bitmap
from parquetry.common.dataset.index_file import IndexFile
from parquetry.common.dataset.index_format import BASE, METADATA_KEY
from parquetry.common.dataset.table import TableColumn
from parquetry.common.dataset.video.track import VideoError, read_track
from parquetry.common.engine.read.cache_entry import open_entry
from parquetry.common.engine.run.bad_rows import read_bad_rows
from parquetry.common.engine.run.vocabularies import read_vocabulary
from parquetry.common.parquet import page_header
from parquetry.common.parquet.footer_check import check_footer
from parquetry.common.parquet.pages import MemoryBytes, find_values
from parquetry.common.plan.selection.store import read_selection
from parquetry.common.plan.state import resume
from parquetry.common.schema.field import SCHEMA_KEY, schema_from_metadata
from parquetry.common.schema.npy import npy_array
from parquetry.common.schema.petastorm_metadata import (
    ROW_GROUP_INDEXES_KEY,
    row_group_indexes_from_petastorm,
    schema_from_petastorm,
)
from parquetry.common.schema.petastorm_metadata import SCHEMA_KEY as PETASTORM_KEY
from parquetry.common.server.client_pipelines import ClientPipelines
from parquetry.common.server.client_session import ClientSession
from parquetry.common.server.limits import ClientLimits
from parquetry.common.server.shared import SharedEpochs
from parquetry.common.server.stream_budget import StreamBudget
from parquetry.common.storage.file_cache import UNREADABLE
from parquetry.common.storage.file_versions import current_version
from parquetry.common.tables.delta import _files, _vector
from parquetry.common.tables.delta_log import parse_lines
from parquetry.common.tables.huggingface import described
from parquetry.common.transport.served.wire import MAGIC, receive_json
from parquetry.common.transport.sidecar import protocol
from parquetry.common.transport.sidecar.slots import read_table

TARGETS: dict[str, Callable[[bytes], object]] = {}
"""Every harness by its name; each raises only for a finding."""

FINGERPRINT = "FINGERPRINT"
"""Placeholder in inputs for that of `sample`'s dataset, which is rewritten each time."""


def _target(*expected: type[BaseException]) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """Registers a harness that may raise these errors."""

    def registered(harness: Callable[[bytes], object]) -> Callable[[bytes], object]:
        @functools.wraps(harness)
        def checked(data: bytes) -> object:
            try:
                return harness(data)
            except expected:
                return None

        TARGETS[harness.__name__] = checked
        return checked

    return registered


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Checks that the package's errors name the file."""
    try:
        yield
    except ParquetryError as error:
        if file not in str(error):
            raise AssertionError(f"an error that does not name {file}: {error}") from error


@_target()
def pages(data: bytes) -> None:
    """The pages of a column chunk; `find_values` leaves those it does not understand to Arrow."""
    if len(data) < 2:
        return
    head, chunk = data[0], np.frombuffer(data, np.uint8, offset=2)
    found = find_values(MemoryBytes(chunk), data[1], width=(None, 1, 8)[head % 3], nullable=head > 127)
    if found is not None:
        starts, ends = found
        assert len(starts) == data[1]
        assert (starts <= ends).all() and (ends <= len(chunk)).all() and (starts >= 0).all()  # noqa: PT018


@_target(ValueError)
def page_headers(data: bytes) -> None:
    """The headers of pages; their reader says which errors it raises."""
    view = memoryview(data)
    pages = [*page_header.page_headers(lambda first, last: view[first:last], len(data))]
    assert all(page.end <= len(data) for page in pages)
    totals = page_header.page_totals(lambda first, last: view[first:last], len(data), 3)
    assert totals.values >= 3
    assert totals.uncompressed_bytes >= 0


@_target(ValueError)
def footers(data: bytes) -> None:
    """The check of a footer that pyarrow accepted, from a file with one column of each physical type."""
    check_footer(data, _footer(), 1 << 20)


@_target(ValueError)
def npy(data: bytes) -> None:
    """An array in `.npy` bytes."""
    array = npy_array(memoryview(data))
    assert array.nbytes <= len(data)


@_target(SchemaError)
def pickles(data: bytes) -> None:
    """Petastorm's pickled schema and indexes."""
    with_key = {PETASTORM_KEY: data, ROW_GROUP_INDEXES_KEY: data}
    for read in (schema_from_petastorm, row_group_indexes_from_petastorm):
        with _naming("x.parquet"):
            read(with_key, where="x.parquet")


@_target(SchemaError)
def metadata(data: bytes) -> None:
    """The JSON of a schema, including the round trip to JSON and back."""
    schema = schema_from_metadata({SCHEMA_KEY: data}, where="x.parquet")
    assert schema is not None
    assert Unischema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@_target(DatasetError)
def index(data: bytes) -> None:
    """The description of a row-group index, in an index file for two row groups."""
    described = b"%08x" % zlib.crc32(data) + data
    lines = pa.table([["a", "a"], [9, 9], [0, 0], [0, 1], [5, 5], [7, 7], ["", ""], [0, 0]], schema=BASE)
    path = _room() / "_row_groups.parquet"
    pq.write_table(lines.replace_schema_metadata({METADATA_KEY: described}), path, write_page_checksum=True)
    filesystem = pafs.LocalFileSystem()
    version = current_version(filesystem, str(path))
    assert version is not None
    with _naming(str(path)):
        IndexFile.open(filesystem, version)


@_target(DatasetError)
def cache_entries(data: bytes) -> None:
    """The table of a cache entry; a parsed table can be read to its end."""
    body = data + b"key"
    entry = body + struct.pack("<QQQ8s", len(data), 3, zlib.crc32(body), b"PQRYCE\0\1")
    table = open_entry(pa.py_buffer(entry), "key", verify=True)
    table.slice(0, 100).to_pylist()


@_target(*UNREADABLE)
def selections(data: bytes) -> None:
    """A stored selection of three row groups; a parsed selection only names existing rows."""
    found = read_selection(data, np.array([4, 4, 4]))
    row_groups, rows = found.rows.locate(found.item_rows(np.arange(found.num_items)).ravel())
    assert ((row_groups >= 0) & (row_groups < 3) & (rows >= 0) & (rows < 4)).all()


@_target(*UNREADABLE)
def kept_rows(data: bytes) -> None:
    """Stored failed rows, and a stored vocabulary."""
    for read in (read_bad_rows, read_vocabulary):
        try:
            read(data)
        except UNREADABLE:
            continue


@_target(StateError)
def states(data: bytes) -> None:
    """A saved state, as text or as parsed JSON."""
    pipeline = sample()
    text = data.decode("utf-8", "surrogateescape").replace(FINGERPRINT, pipeline.plan().fingerprint)
    resume(pipeline, lambda made: made.plan(), text)


@_target(SidecarError)
def frames(data: bytes) -> None:
    """The frames that a client of the Arrow server sends."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data[:50_000])
        theirs.close()
        while receive_json(ours, most_bytes=1 << 18) is not None:
            pass


@_target()
def requests(data: bytes) -> None:
    """A request to the Arrow server, which must answer with a value or an intended error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(60)
        theirs.sendall(MAGIC + struct.pack("<I", min(len(data), 50_000)) + data[:50_000])
        theirs.shutdown(socket.SHUT_WR)
        ClientSession(_served(), ours).serve()
        ours.close()
        found = receive_json(theirs)
    assert found is not None
    assert found.get("error") != "ParquetryError", found


@_target(SidecarError)
def messages(data: bytes) -> None:
    """A packet of the sidecar's protocol, with its body parsed as every type of message."""
    for body in (protocol.Start, protocol.Started, protocol.RemoteError, protocol.BatchHeader):
        try:
            body.unpack(data[protocol.HEADER.size :])
        except SidecarError:
            continue
    with suppress(SidecarError):
        protocol.BatchHeader.unpack_all(data[protocol.HEADER.size :])
    protocol.unpack(data, [0] * (data[36] if len(data) > 36 else 0))


@_target(SidecarError, ArithmeticError, LookupError, TypeError, ValueError)
def slots(data: bytes) -> None:
    """The tensor table of a batch; the client ends a sidecar on each of these errors."""
    header = protocol.BatchHeader.unpack(data[: protocol.BATCH.size])
    read_table(data[protocol.BATCH.size :], header, sample().element.leaves)


@_target(DatasetError)
def tfrecords(data: bytes) -> None:
    """A record of a TFRecord file."""
    from parquetry.common.apps.tools.tfrecord import _checksum

    head = struct.pack("<Q", len(data))
    whole = head + struct.pack("<I", _checksum(head)) + data + struct.pack("<I", _checksum(data))
    list(tfrecord_rows(io.BytesIO(whole), "x.tfrecord"))


@_target(ValueError)
def bitmaps(data: bytes) -> None:
    """The bitmap of a deletion vector."""
    assert len(decode_bitmap64(data, 1 << 20)) <= 1 << 20


@_target(DatasetError, ValueError)
def delta_logs(data: bytes) -> None:
    """A commit of a Delta table: its live files and deletion vectors, whose paths are below the table or absolute."""
    adds = [action for kind, action in parse_lines(data) if kind == "add"]
    column = TableColumn(name="p", arrow=pa.string(), names=(("p",),), partition=True)
    files, _ = _files("Delta table 'x'", adds, "/table", [column])
    assert not any("/../" in f"{file.version.path}/" for file in files if file.version.path.startswith("/table"))


@_target(DatasetError, ValueError, struct.error)
def deletion_vectors(data: bytes) -> None:
    """What a log says of a deletion vector, on one line, and the bytes of a file with the right checksum."""
    line, _, content = data.partition(b"\n")
    content = content[:50_000]
    for _, action in parse_lines(b'{"add": {"path": "a", "size": 1, "deletionVector": ' + line + b"}}"):
        if not action["deletionVector"]:
            continue
        item = _vector("Delta table 'x'", action["deletionVector"], str(_room()))
        if not item.inline:
            path = _room() / "vectors"
            path.write_bytes(struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content)))
            item = replace(item, path=str(path), size_bytes=len(content), offset=0)
        item = replace(item, count=min(item.count, 1 << 20))
        assert len(_bitmap(pafs.LocalFileSystem(), item)) == item.count


@_target(DatasetError, SchemaError)
def hugging_face(data: bytes) -> None:
    """What Hugging Face's datasets package says of the columns in a file's metadata."""
    kinds = {"image": pa.struct({"bytes": pa.binary()}), "label": pa.int64(), "x": pa.list_(pa.list_(pa.float32()))}
    schema = pa.schema(kinds, metadata={b"huggingface": data})
    with _naming("x.parquet"):
        described([("x.parquet", schema)], (None, None, 3))


@_target(VideoError)
def videos(data: bytes) -> None:
    """The index of an MP4 file; whatever it says is inside the file."""
    track = read_track(lambda offset, length: data[offset : offset + length], len(data))
    assert ((track.offsets >= 0) & (track.sizes >= 0) & (track.offsets + track.sizes <= len(data))).all()
    frames = np.arange(len(track.shown))
    first, last = track.first_samples(frames), track.last_samples(frames)
    assert ((first >= 0) & (first <= last) & (last < len(track.sizes))).all()
    seconds = track.seconds()
    assert (np.diff(seconds) >= 0).all()
    assert (seconds[track.frames_at(seconds)] == seconds).all()


@functools.cache
def _room() -> Path:
    room = Path(tempfile.mkdtemp(prefix="parquetry-fuzz-"))
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    return room


@functools.cache
def sample() -> Pipeline:
    """Batches of three rows of a dataset of ten."""
    fields = [UnischemaField("id", np.int64), UnischemaField("text", np.str_), UnischemaField("x", np.float32, (None,))]
    rows = ({"id": number, "text": str(number), "x": np.zeros(number, np.float32)} for number in range(10))
    write_dataset(_room() / "rows", Unischema("rows", fields), rows)
    return Pipeline(_room() / "rows", executor="threads", workers=1).shuffle(4, seed=1).batch(3)


@functools.cache
def _footer() -> pq.FileMetaData:
    types = (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.binary(), pa.binary(4))
    schema = pa.schema([pa.field(f"c{number}", kind) for number, kind in enumerate(types)])
    stream = io.BytesIO()
    pq.write_table(schema.empty_table(), stream)
    return pq.read_metadata(stream)


class _Served:
    """The server's source of answers."""

    token = None

    def __init__(self) -> None:
        self.limits = ClientLimits(hello_s=60, idle_s=60, plan_s=60)
        self.pipelines = ClientPipelines(sample(), self.limits)
        self.budget = StreamBudget(self.limits)
        self.shared = SharedEpochs(self.budget)

    def new_endpoint(self, send: Callable[..., None]) -> None:
        """Returns None."""

    def end_endpoint(self, endpoint: object) -> None:
        """Does nothing."""


@functools.cache
def _served() -> _Served:
    return _Served()
