"""The machine's limit for each workload: the least work any loader must do, with one thread per processor.

JPEG: only the decoder, with bytes in memory and reused buffers. Arrays: row groups are read and copied once. Tables:
row groups are read. Nothing is shuffled, batched or handed over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..data import events
from ..steps import as_bytes, decode, new_image_buffer, parquet_files, row_groups
from ..workloads import (
    BLOCK_TOKENS,
    CAMERAS,
    FRAME_SHAPE,
    IMAGE_SHAPES,
    LIDAR_SHAPE,
    NUMBERS,
    ROW_GROUP_ROWS,
    SEEN,
    Case,
)

SETTINGS = {
    "": "as many threads as processors; JPEG: simplejpeg from memory into reused buffers; Parquet: pyarrow row groups, "
    "arrays copied once into reused buffers"
}
_COLUMNS = {
    "table": ["label", *NUMBERS["table"]],
    "wide": ["label", *NUMBERS["wide"]],
    "texts": ["id", "title", "tokens", "scores"],
    "documents": ["tokens"],
}
_Step = Callable[[], int]
_LARGE_IMAGES = 4  # decoded in one step: each takes milliseconds


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each step as it finishes, on whichever thread."""
    made: queue.Queue[int | BaseException] = queue.Queue(maxsize=case.workers)

    def run(thread: int) -> None:
        try:
            step = _step(case, thread)
            while True:
                made.put(step())
        except BaseException as error:
            made.put(error)

    for thread in range(case.workers):
        threading.Thread(target=run, args=(thread,), daemon=True).start()
    while True:
        rows = made.get()
        if isinstance(rows, BaseException):
            raise rows
        yield rows


def steps(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns single steps, for the workloads that time them."""
    if case.workload.key == "i":
        return {"plan": lambda: pq.read_table(case.data / "parquet" / "_row_groups.parquet")}

    def first_batch() -> None:
        groups = row_groups(parquet_files(case.data / "parquet"))
        wanted = groups[: case.workload.buffer_rows // ROW_GROUP_ROWS["images"]]
        tables = [pq.ParquetFile(file).read_row_group(number, columns=["image"]) for file, number in wanted]
        for encoded in tables[0].column("image")[: case.workload.batch_size]:
            decode(as_bytes(encoded))

    return {"cold": first_batch, "warm": first_batch}


def _step(case: Case, thread: int) -> _Step:
    key = case.workload.key
    if key in ("a", "b", "b-filter", "b-large", "f", "f-shuffled", "j"):
        return _decode_step(case, thread)
    if key in SEEN:
        return _video_step(case, thread)
    if key == "g":
        return _filter_step(case, thread)
    if key.startswith("c"):
        return _copy_step(case, thread)
    return _scan_step(case, thread)


def _decode_step(case: Case, thread: int) -> _Step:
    files = sorted((case.data / "files").glob("*.jpg"))[thread :: case.workers]
    encoded = [path.read_bytes() for path in files]
    shape = IMAGE_SHAPES[case.workload.data]
    rows = case.workload.batch_size if case.workload.data == "images" else _LARGE_IMAGES
    buffer = new_image_buffer(rows, shape)
    position = 0

    def step() -> int:
        nonlocal position
        for row in range(rows):
            decode(encoded[(position + row) % len(encoded)], buffer[row])
        position += rows
        return rows

    return step


def _video_step(case: Case, thread: int) -> _Step:
    """Decodes each frame of the cameras once, in order, to RGB. A window for each frame of both."""
    import av

    (path,) = (case.data / "lerobot" / "videos" / CAMERAS[thread % len(CAMERAS)]).glob("*/*.mp4")
    reformatter = av.video.reformatter.VideoReformatter()
    buffer = np.empty(FRAME_SHAPE, np.uint8)

    def frames() -> Iterator[Any]:
        while True:
            with av.open(str(path)) as container:
                container.streams.video[0].thread_count = 1
                yield from container.decode(video=0)

    stream = frames()

    def step() -> int:
        for _ in range(len(CAMERAS) * case.workload.batch_size):
            plane = reformatter.reformat(next(stream), format="rgb24", threads=1).planes[0]
            strides = (plane.line_size, *buffer.strides[1:])
            np.copyto(buffer, np.ndarray(FRAME_SHAPE, np.uint8, memoryview(plane), strides=strides))
        return case.workload.batch_size

    return step


def _filter_step(case: Case, thread: int) -> _Step:
    """Reads the images of the row groups that contain events (known beforehand), and decodes the events."""
    each = ROW_GROUP_ROWS["rare"]
    wanted = np.flatnonzero(events(case.rows))
    groups = row_groups(parquet_files(case.data / "parquet"))
    first_rows = np.concatenate([[0], np.cumsum([_rows_of(group) for group in groups])])
    numbers = np.searchsorted(first_rows, wanted, side="right") - 1
    todo = [
        (groups[row_group], wanted[numbers == row_group] - first_rows[row_group]) for row_group in np.unique(numbers)
    ]
    readers = {file: pq.ParquetFile(file) for file, _ in groups}
    buffer = new_image_buffer(each, IMAGE_SHAPES["rare"])
    position = thread

    def step() -> int:
        nonlocal position
        (file, number), rows = todo[position % len(todo)]
        position += case.workers
        column = readers[file].read_row_group(number, columns=["image"], use_threads=False).column(0)
        for place, row in enumerate(rows):
            decode(as_bytes(column[int(row)]), buffer[place])
        return len(rows)

    return step


def _copy_step(case: Case, thread: int) -> _Step:
    folder = case.data / f"parquet-{case.workload.key.partition('-')[2]}"
    groups = row_groups(parquet_files(folder))
    readers = {file: pq.ParquetFile(file) for file, _ in groups}
    buffer = np.ones((ROW_GROUP_ROWS["lidar"], *LIDAR_SHAPE), np.float32)
    size = buffer[0].nbytes
    flat = buffer.reshape(len(buffer), -1).view(np.uint8)
    position = thread

    def step() -> int:
        nonlocal position
        file, number = groups[position % len(groups)]
        position += case.workers
        column = readers[file].read_row_group(number, columns=["points"], use_threads=False).column(0)
        row = 0
        for chunk in column.chunks:
            content, ends = _cells(chunk)
            for end in ends:
                flat[row] = content[end - size : end]  # the values are at the end of the .npy bytes
                row += 1
        return row

    return step


def _cells(chunk: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of a binary array and the end offset of each cell."""
    buffers = chunk.buffers()
    if len(buffers) == 2:  # fixed size
        width = chunk.type.byte_width
        return np.frombuffer(buffers[1], np.uint8), (np.arange(len(chunk)) + 1 + chunk.offset) * width
    wide = np.int64 if "large" in str(chunk.type) else np.int32
    offsets = np.frombuffer(buffers[1], wide)[chunk.offset + 1 : chunk.offset + len(chunk) + 1]
    return np.frombuffer(buffers[2], np.uint8), offsets


def _scan_step(case: Case, thread: int) -> _Step:
    groups = row_groups(parquet_files(case.data / "parquet"))
    readers = {file: pq.ParquetFile(file) for file, _ in groups}
    columns = _COLUMNS[case.workload.data]
    position = thread

    def step() -> int:
        nonlocal position
        file, number = groups[position % len(groups)]
        position += case.workers
        table = readers[file].read_row_group(number, columns=columns, use_threads=False)
        if case.workload.key != "k":
            return len(table)
        return sum(len(chunk.values) for chunk in table.column("tokens").chunks) // BLOCK_TOKENS

    return step


def _rows_of(group: tuple[str, int]) -> int:
    file, number = group
    return int(pq.read_metadata(file).row_group(number).num_rows)
