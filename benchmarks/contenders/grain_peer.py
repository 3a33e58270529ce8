"""Grain: a `MapDataset` over files, decoded in its read threads; token lists from Parquet, packed in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np

from ..steps import image_row, parquet_files
from ..touch import rows_of
from ..workloads import BLOCK_TOKENS, SEED, Case

SETTINGS = {
    "": "MapDataset over files, shuffle, map and batch before to_iter_dataset, so that its threads (one for each "
    "processor, 4 batches ahead) make whole batches; simplejpeg (b: OpenCV resize); k: ParquetIterDataset, "
    "WindowShuffleIterDataset, ConcatThenSplitIterDataset and batch, 4 batches ahead in a thread"
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    return map(rows_of, iter(_packed(case) if case.workload.key == "k" else _dataset(case)))


def resume_steps(case: Case) -> Callable[[], Any]:
    """Returns a function that takes a first batch from the state after 90 % of a pass."""
    rows = iter(_dataset(case))
    for _ in range(int(0.9 * case.rows / case.workload.batch_size)):
        next(rows)
    state = rows.get_state()

    def resumed() -> None:
        again = iter(_dataset(case))
        again.set_state(state)
        next(again)

    return resumed


class _Files:
    def __init__(self, folder: Path) -> None:
        self._paths = sorted(str(path) for path in folder.iterdir())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> tuple[int, str]:
        return place, self._paths[place]


def _dataset(case: Case) -> Any:
    key = case.workload.key

    def row(item: tuple[int, str], random: np.random.Generator) -> dict[str, Any]:
        number, path = item
        if key.startswith("c"):
            return {"id": number, "points": np.load(path)}
        return {"id": number, "image": image_row(key, Path(path).read_bytes(), random)}

    dataset = grain.MapDataset.source(_Files(case.data / "files")).seed(SEED)
    if case.workload.buffer_rows:
        dataset = dataset.shuffle()
    dataset = dataset.repeat(case.passes).random_map(row).batch(case.workload.batch_size)
    return dataset.to_iter_dataset(grain.ReadOptions(num_threads=case.workers, prefetch_buffer_size=4))


def _packed(case: Case) -> Any:
    """Concatenates token lists and cuts them into blocks; also produces positions and segments."""
    parts = grain.experimental
    dataset = parts.RepeatIterDataset(parts.ParquetIterDataset(parquet_files(case.data / "parquet")), case.passes)
    dataset = parts.WindowShuffleIterDataset(dataset, window_size=case.workload.buffer_rows, seed=SEED)
    dataset = parts.ConcatThenSplitIterDataset(dataset, length_struct={"tokens": BLOCK_TOKENS})
    return parts.ThreadPrefetchIterDataset(dataset.batch(case.workload.batch_size), prefetch_buffer_size=4)
