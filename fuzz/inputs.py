"""The fuzzer's inputs: a corpus for each target, made by the package's own writers, and seeded mutations of it.

``python -m fuzz.inputs`` rewrites the corpus after a format change.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquetry.common import (
    CompressedImageCodec,
    NdarrayCodec,
    Pipeline,
    Unischema,
    UnischemaField,
    write_dataset,
)
from parquetry.common.base.platform.memory_file import memory_file
from parquetry.common.dataset.index import write_index
from parquetry.common.dataset.index_format import INDEX_NAME, METADATA_KEY
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.schema.field import SCHEMA_KEY, schema_to_metadata
from parquetry.common.schema.petastorm_metadata import PetastormIndex
from parquetry.common.server.sending import open_steps
from parquetry.common.tables.delta import _B85
from parquetry.common.tables.delta import _Z85 as _Z85_LETTERS
from parquetry.common.transport.served.wire import MAGIC, StreamRequest
from parquetry.common.transport.sidecar import protocol
from parquetry.common.transport.sidecar.slots import SlotMemory, write_table
from parquetry.common.write.petastorm import indexes_to_pickle, petastorm_schema, schema_to_pickle

from .targets import FINGERPRINT, sample

CORPUS = Path(__file__).parent / "corpus"
_PIECES = (
    *(
        b"\0" * 8,
        b"\xff" * 8,
        b"\xff" * 7 + b"\x7f",
        b"\0\0\0\x80",
        b"\xff\xff\xff\x7f",
        b"-1",
        b"1e999",
        b"NaN",
        b"null",
    ),
    *(b"[" * 3000, b'{"a":' * 2000, b"(" * 300, b"9" * 5000, b"\\ud800", b"\xc3\x28", b"{}", b"[]", b'""', b"true"),
)


def corpus_of(name: str) -> list[bytes]:
    """Returns the corpus of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def changed(draw: random.Random, corpus: list[bytes]) -> bytes:
    """Returns one of the inputs with a few mutations: bits, bytes, odd pieces, cuts, and parts of other inputs."""
    data = bytearray(draw.choice(corpus))
    for _ in range(draw.choice((1, 1, 2, 4, 12))):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice((1, 1, 4, 8, 64)))
        kind = draw.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:end] = draw.randbytes(end - at)
        elif kind == 2:
            data[at : draw.choice((at, end))] = draw.choice(_PIECES)
        elif kind == 3:
            del data[at : draw.choice((end, end, end, len(data)))]
        elif kind == 4:
            other = draw.choice(corpus)
            first = draw.randrange(len(other) + 1)
            data[at:end] = other[first : first + draw.randrange(1, 65)]
        else:
            data[at:at] = data[at:end] * draw.choice((1, 2, 50))
    return bytes(data)


def made(room: Path) -> dict[str, Sequence[bytes]]:
    """Returns the seed inputs of each target, made in a directory by the package's own writers."""
    fields = [
        UnischemaField("id", np.int64),
        UnischemaField("text", np.str_, nullable=True),
        UnischemaField("x", np.float32, (None, 2), NdarrayCodec()),
        UnischemaField("image", np.uint8, (None, 4, 3), CompressedImageCodec("png"), dims=("h", "w", "c")),
    ]
    schema = Unischema("rows", fields)
    _write(room, schema)
    pipeline = Pipeline(room, executor="threads")
    iterator = iter(sample())
    next(iterator)
    state = json.dumps(iterator.state_dict()).replace(sample().plan().fingerprint, FINGERPRINT)
    old = PetastormIndex(name="of", column="id", ordinals=frozenset([0, 1]), ordinals_by_value={1: frozenset([0])})
    (file,) = room.glob("*.parquet")
    return {
        "pages": [b"\x00\x0c" + _chunk(room, version="1.0"), b"\x80\x0c" + _chunk(room, version="2.0")],
        "page_headers": [_chunk(room, version="1.0")[:60], _chunk(room, version="2.0")[:60]],
        "footers": [_footer(file)],
        "npy": [_npy(np.arange(3.0)), _npy(np.zeros((2, 2), "U3")), _npy(np.zeros(1, [("a", "<i4"), ("b", "S2")]))],
        "pickles": [schema_to_pickle(petastorm_schema(schema)), indexes_to_pickle({"of": old}), b'{"a.parquet": 3}'],
        "metadata": [schema_to_metadata(schema)[SCHEMA_KEY]],
        "index": [_index(room)],
        "cache_entries": [_stream(pa.table({"x": [1, 2], "t": ["a", None], "l": [[1], []]})), _stream(_coded())],
        "selections": _selections(room, pipeline),
        "kept_rows": [
            b'{"rows": [[0, 1, 2, "DecodeError", "field x"]], "covered": {"0/None/1": [0]}}',
            _stream(pa.table({"values": pa.array(["a", "b"], pa.large_string())})),
        ],
        "states": [state.encode()],
        "frames": [b"".join(MAGIC + struct.pack("<I", len(text)) + text for text in _REQUESTS[:2])],
        "requests": _REQUESTS,
        "messages": _packets(),
        "slots": [_slot()],
        "tfrecords": [
            b"\n\x14\n\x08\n\x01a\x12\x03\x1a\x01\x05\n\x08\n\x01b\x12\x03\n\x01z",
            b"\n\x0d\n\x0b\n\x01f\x12\x06\x12\x04\0\0\x80?",
        ],
        "bitmaps": [
            struct.pack("<QIIIHHI3H", 1, 0, 12346, 1, 0, 2, 16, 1, 5, 9),
            struct.pack("<QIIBHHHHH", 1, 1, 12347, 1, 0, 4, 1, 3, 4),
        ],
        "op_client": _golden(),
        "core_pages": list(_column_chunks(room)),
        "core_cells": [b"\x0c\xff\x07" + _chunk(room, version=version) for version in ("1.0", "2.0")],
        "core_footers": [b"\x04\x03" + _footer(file), b"\0\0\x03\0\0\0abc\0\0\0\0"],
        "delta_logs": _COMMITS,
        "deletion_vectors": _VECTORS,
        "hugging_face": [json.dumps({"info": {"features": _FEATURES}}).encode()],
        "videos": [video_file(), video_file(long=True), video_file(index_first=True)],
    }


_ADD = {"path": "p=a%20b/x.parquet", "size": 9, "partitionValues": {"p": "a b"}, "modificationTime": 1}
_STORED = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 40}
_BITMAP = struct.pack("<IQIIIHHI3H", 1681511377, 1, 0, 12346, 1, 0, 2, 16, 1, 5, 9)
_Z85 = base64.b85encode(_BITMAP + b"\0\0").decode().translate(str.maketrans(_B85, _Z85_LETTERS))
_INLINE = {"storageType": "i", "pathOrInlineDv": _Z85, "sizeInBytes": len(_BITMAP), "cardinality": 3}
_COMMITS = [
    "\n".join(json.dumps(line) for line in lines).encode()
    for lines in (
        [{"commitInfo": {}}, {"add": _ADD}, {"remove": {"path": "y.parquet"}}, {"sidecar": {"path": "z.parquet"}}],
        [{"add": {**_ADD, "path": "/far/x.parquet", "deletionVector": {**_STORED, "cardinality": 2}}}],
        [{"add": {**_ADD, "deletionVector": _INLINE}}],
    )
]
_VECTORS = [
    json.dumps({**_STORED, "cardinality": 3}).encode() + b"\n" + _BITMAP,
    json.dumps(_INLINE).encode(),
]
_FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
    "x": {"_type": "Array2D", "shape": [2, 3], "dtype": "float32"},
    "y": {"_type": "Sequence", "feature": {"dtype": "int64", "_type": "Value"}, "length": 3},
}
_REQUESTS = [
    json.dumps({"version": 1, "seed": None, **request}).encode()
    for request in (
        {"do": "describe", "stages": []},
        {"do": "length", "stages": [{"verb": "shard", "num_shards": 2, "index": 0, "even": "pad"}]},
        {"do": "explain", "stages": [{"verb": "select", "patterns": ["id"]}], "seed": 3},
        {"do": "origin_after", "origin": [0, 0], "num_shards": 2, "rows": 3},
        {"do": "progress"},
        {"do": "start_next_at", "numbers": {"iteration": 1}},
    )
]


def _golden() -> list[bytes]:
    """Returns the packets that both clients are tested with."""
    text = (Path(__file__).parent.parent / "tests/data/sidecar/packets_v3.txt").read_text()
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [bytes.fromhex("".join(parts)) for _, *parts in lines]


def video_file(*, long: bool = False, index_first: bool = False) -> bytes:
    """Returns an MP4 file of five frames at 10 per second, with bytes in place of pictures.

    They are shown in the order 0, 2, 1, 3, 4, after half a second. Samples 0 and 3 are key frames.

    Args:
        long: with the long form of each box that has one, a codec inside MPEG-4's descriptors, and sizes in half bytes.
        index_first: with the index before the samples.
    """
    version, clock, integer, place = (1, "QQ", "Q", "Q") if long else (0, "II", "I", "I")
    samples = [b"key-0", b"ppp", b"b", b"key-3", b"pp"]
    media = b"".join(samples)
    media_box = struct.pack(">I4sQ", 1, b"mdat", 16 + len(media)) + media if long else box("mdat", media)

    def table(kind: str, form: str, *rows: Sequence[int]) -> bytes:
        return box(kind, struct.pack(">II", 0, len(rows)), *(struct.pack(f">{form}", *row) for row in rows))

    def index(at: int) -> bytes:
        clocks = struct.pack(f">I{clock}I{integer}", version << 24, 0, 0, 10, 6)
        config = b"\0\0\0\0\3\x1a\0\1\0\4\x15\x20" + bytes(12) + b"\5\3\1\2\3\6\1\2" if long else b"\1\2\3"
        entry = bytes(24) + struct.pack(">HH", 64, 48) + bytes(50) + box("esds" if long else "avcC", config)
        sizes = [len(each) for each in samples]
        halves = bytes((sizes[0] << 4 | sizes[1], sizes[2] << 4 | sizes[3], sizes[4] << 4))
        edits = [(5, -1, 1 << 16), (5, 1, 1 << 16)]
        return box(
            "moov",
            box("mvhd", clocks),
            box("trak", box("mdia", box("mdhd", clocks), box("hdlr", bytes(8), b"soun"))),
            box(
                "trak",
                box("edts", box("elst", struct.pack(">II", version << 24, 2), *_edit_rows(edits, integer))),
                box(
                    "mdia",
                    box("mdhd", clocks),
                    box("hdlr", bytes(8), b"vide", bytes(13)),
                    box(
                        "minf",
                        box(
                            "stbl",
                            box("stsd", struct.pack(">II", 0, 1), box("mp4v" if long else "avc1", entry)),
                            table("stts", "II", (5, 1)),
                            table("ctts", "Ii", (1, 1), (1, 2), (1, 0), (2, 1)),
                            table("stsc", "III", (1, 3, 1), (2, 2, 1)),
                            box("stz2", struct.pack(">III", 0, 4, 5), halves)
                            if long
                            else box("stsz", struct.pack(">III5I", 0, 0, 5, *sizes)),
                            table("co64" if long else "stco", place, (at,), (at + sum(sizes[:3]),)),
                            table("stss", "I", (1,), (4,)),
                        ),
                    ),
                ),
            ),
        )

    head = box("ftyp", b"isom\0\0\2\0isom")
    if index_first:
        return head + index(len(head) + len(index(0)) + 8) + media_box
    return head + media_box + index(len(head) + len(media_box) - len(media))


def box(kind: str, *parts: bytes) -> bytes:
    """Returns a box of an MP4 file."""
    content = b"".join(parts)
    return struct.pack(">I4s", 8 + len(content), kind.encode()) + content


def _edit_rows(edits: Sequence[tuple[int, int, int]], integer: str) -> Iterator[bytes]:
    return (struct.pack(f">{integer}{integer.lower()}I", *edit) for edit in edits)


def _write(room: Path, schema: Unischema) -> None:
    rows = (
        {"id": n, "text": str(n), "x": np.zeros((n, 2), np.float32), "image": np.zeros((2, 4, 3), np.uint8)}
        for n in range(12)
    )
    write_dataset(room, schema, rows, row_group_rows=4)


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _stream(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def _coded() -> pa.Table:
    return pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode(), "s": pa.array([{"a": 1}] * 3)})


_VALUES = pa.array([bytes([n] * n) for n in range(12)], pa.binary())
_SNAPPY, _MAY_BE_NULL, _CHECKED, _IN_ORDER = 1, 4 | 8, 16, 32  # options of core_pages.cc
_KINDS: Sequence[tuple[int, pa.Array]] = (
    (0, pa.array([1, None, 3] * 4, pa.int32())),
    (1, pa.array(range(12), pa.int64())),
    (2, pa.array([n % 3 for n in range(12)], pa.int8())),
    (4, pa.array(["a", "bc", None, ""] * 3)),
    (6, pa.array([[1, 2], [], [4], [3]] * 3, pa.list_(pa.int32()))),
)
"""Columns by their number in core_pages.cc."""


def _column_chunks(room: Path) -> Iterator[bytes]:
    for kind, values in _KINDS:
        for version, coded, packed in (("1.0", False, False), ("2.0", True, True), ("1.0", True, False)):
            flags = _MAY_BE_NULL | _CHECKED | (_SNAPPY if packed else _IN_ORDER)
            options = bytes([kind, flags, len(values), 40, 40])
            compression = "snappy" if packed else "none"
            yield options + _chunk(room, values, version=version, use_dictionary=coded, compression=compression)
    nulls = pa.array([1, *[None] * 11], pa.int32())  # the one number fits, but not the nulls
    yield bytes([0, _MAY_BE_NULL, len(nulls), 1, 40]) + _chunk(room, nulls, version="1.0")


def _chunk(
    room: Path, values: pa.Array = _VALUES, *, version: str, use_dictionary: bool = False, compression: str = "none"
) -> bytes:
    path = room / "chunk"
    pq.write_table(
        pa.table({"x": values}),
        path,
        data_page_version=version,
        data_page_size=20,
        write_batch_size=4,
        use_dictionary=use_dictionary,
        compression=compression,
        write_statistics=False,
        write_page_checksum=use_dictionary,
    )
    column = pq.read_metadata(path).row_group(0).column(0)
    content = path.read_bytes()
    path.unlink()
    return content[column.dictionary_page_offset or column.data_page_offset :][: column.total_compressed_size]


def _footer(file: Path) -> bytes:
    content = file.read_bytes()
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


def _index(room: Path) -> bytes:
    write_index(room)
    return bytes(pq.read_metadata(room / INDEX_NAME).metadata[METADATA_KEY][8:])


def _selections(room: Path, pipeline: Pipeline) -> list[bytes]:
    os.environ["PARQUETRY_CACHE_DIR"] = str(room / "cache")
    for chain in (pipeline.where([("id", "in", [1, 2, 7])]), pipeline.ngram(length=2, timestamp="id")):
        len(chain)
    return [path.read_bytes()[16:] for path in (room / "cache" / "selections").glob("*.npz")]


def _slot() -> bytes:
    _, columns = next(open_steps(sample(), StreamRequest()))
    slot = SlotMemory(memory_file("slot"))
    header = write_table(slot, columns, first_element=0, num_elements=1, num_rows=3)
    content = os.pread(slot.descriptor, header.table_offset + header.num_tensors * protocol.ENTRY_BYTES, 0)
    slot.close()
    return bytes(header.pack() + content)


def _packets() -> list[bytes]:
    bodies = (
        protocol.Start(cursor=Cursor(), merge=True, state="{}"),
        protocol.Started(iteration=1, most_slots=4, before="{", after="}"),
        protocol.RemoteError(name="DecodeError", text="field x"),
        protocol.BatchHeader(
            slot_bytes=4096, table_offset=192, first_element=0, num_tensors=1, num_elements=1, num_rows=1
        ),
    )
    kinds = (
        protocol.MessageType.START,
        protocol.MessageType.STARTED,
        protocol.MessageType.ERROR,
        protocol.MessageType.BATCH,
    )
    return [
        protocol.pack(protocol.Message(type=kind, generation=1, body=body.pack()))
        for kind, body in zip(kinds, bodies, strict=True)
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as room:
        for name, inputs in made(Path(room) / "rows").items():
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            for number, content in enumerate(inputs):
                (CORPUS / name / str(number)).write_bytes(content)
