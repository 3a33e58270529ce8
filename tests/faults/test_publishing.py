"""Writers that die at any operation of the file system: readers see the old dataset, the new one, or an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.fs as pafs
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.tools import copy, copying
from parquetry.common.base.errors import DatasetError, ParquetryError
from parquetry.common.dataset.index import write_index

SCHEMA = Unischema("s", [UnischemaField("id", np.int64), UnischemaField("part", str)])
OLD, NEW = [100, 101], [0, 1, 2, 3]


class Mortal(pafs.FSSpecHandler):  # type: ignore[misc]
    """A file system whose writer dies at one change. From then on, it changes nothing."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__(fsspec.filesystem("file"))
        self.changes = 0
        self._dies_at = dies_at

    @property
    def is_dead(self) -> bool:
        return self._dies_at is not None and self.changes > self._dies_at

    def _change(self) -> None:
        self.changes += not self.is_dead
        if self.is_dead:
            raise OSError("the writer is dead")

    def create_dir(self, path: str, recursive: bool) -> None:
        self._change()
        super().create_dir(path, recursive)

    def delete_dir(self, path: str) -> None:
        self._change()
        super().delete_dir(path)

    def delete_file(self, path: str) -> None:
        self._change()
        super().delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._change()
        super().move(src, dest)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._change()
        return super().open_output_stream(path, metadata)


def write(target: Path, ids: list[int], **options: Any) -> None:
    rows = [{"id": number, "part": f"p{number % 2}"} for number in ids]
    write_dataset(target, SCHEMA, rows, row_group_rows=2, partition_by="part", **options)


def seen(target: Path) -> list[int] | None:
    """Returns the numbers that a reader finds; ``None`` if it gets an error."""
    try:
        return sorted(int(row["id"]) for row in Pipeline(target, executor="threads"))
    except DatasetError:
        return None


def deaths(run: Any, step: int = 1) -> Iterator[Mortal]:
    """Yields a file system for every ``step``-th change of a run that ends well, in which it dies there."""
    alive = Mortal()
    run(alive)
    assert alive.changes > 8
    for number in range(0, alive.changes, step):
        yield Mortal(number)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path / "source", NEW, files=2)
    return tmp_path / "source"


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_copy_that_dies_is_never_taken_for_whole(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool, step: int
) -> None:
    number = 0

    def run(handler: Mortal | None, **options: Any) -> Path:
        target = tmp_path / f"target{number}"
        if replaces and not target.exists():
            write(target, OLD)
        with monkeypatch.context() as patch:
            if handler is not None:
                patch.setattr(copying, "resolve", lambda *_, **__: (pafs.PyFileSystem(handler), str(target)))
            copy(source, target, stripe_bytes=1, progress=False, overwrite=replaces, **options)
        return target

    for number, handler in enumerate(deaths(run, step), 1):
        target = tmp_path / f"target{number}"
        with contextlib.suppress(ParquetryError):
            run(handler)
        assert handler.is_dead
        assert seen(target) in (None, NEW, OLD if replaces else None)
        if replaces:
            with contextlib.suppress(ParquetryError):
                run(Mortal(number), where=[("id", "<", 3)])  # another copy over the unfinished one
            assert seen(target) in (None, NEW, OLD, NEW[:3])
        run(None)
        assert seen(target) == NEW


def test_a_written_dataset_whose_writer_dies_is_never_taken_for_whole(tmp_path: Path) -> None:
    number = 0

    def run(handler: Mortal) -> None:
        write(tmp_path / f"target{number}", NEW, files=2, filesystem=pafs.PyFileSystem(handler))

    for number, handler in enumerate(deaths(run), 1):
        with contextlib.suppress(ParquetryError):
            run(handler)
        assert seen(tmp_path / f"target{number}") in (None, NEW)


def test_a_part_whose_writer_dies_on_a_store_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    number = 0

    def run(handler: Mortal) -> None:
        target = tmp_path / f"target{number}"
        if not target.exists():
            write(target, OLD)
            write_index(target)
        write(target, NEW, files=2, mode="append", filesystem=pafs.PyFileSystem(handler))

    for number, handler in enumerate(deaths(run), 1):
        target = tmp_path / f"target{number}"
        with contextlib.suppress(ParquetryError):
            run(handler)
        assert handler.is_dead
        before = seen(target)
        assert before in (OLD, NEW + OLD)
        write(target, [7], mode="append")
        assert seen(target) == sorted([*before, 7])
