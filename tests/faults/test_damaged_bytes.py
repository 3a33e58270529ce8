"""Damaged files of every codec: they yield the exact rows, or one of parquetry's errors that names the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    Pipeline,
    TensorCodec,
    Unischema,
    UnischemaField,
    write_dataset,
)
from parquetry.common.base.errors import ParquetryError

SCHEMA = Unischema(
    "all",
    [
        UnischemaField("id", np.int64),
        UnischemaField("text", np.str_),
        UnischemaField("raw", np.float32, (30, 4), TensorCodec()),
        UnischemaField("array", np.float32, (None, 4), NdarrayCodec()),
        UnischemaField("zipped", np.float32, (None,), CompressedNdarrayCodec()),
        UnischemaField("photo", np.uint8, (None, None, 3), CompressedImageCodec("jpeg")),
        UnischemaField("mask", np.uint8, (9, 9, 3), CompressedImageCodec("png")),
        UnischemaField("tokens", np.int64, (None,)),
        UnischemaField("words", np.str_, (None,), NdarrayCodec()),
    ],
)
MUTATIONS = 25


def row(number: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "id": number,
        "text": f"row {number}",
        "raw": rng.random((30, 4), np.float32),
        "array": rng.random((number + 1, 4), np.float32),
        "zipped": np.arange(number, dtype=np.float32),
        "photo": rng.integers(0, 255, (16 + number, 16, 3), np.uint8),
        "mask": rng.integers(0, 255, (9, 9, 3), np.uint8),
        "tokens": np.arange(number),
        "words": np.array([f"word {number}", "b"]),
    }


def read(folder: Path, **options: Any) -> list[dict[str, Any]]:
    return list(Pipeline(folder, executor="threads", workers=1, **options))


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    return len(found) == len(wanted) and all(
        mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(found, wanted, strict=True)
    )


def mutated(content: bytes, chance: random.Random, *, footer: bool) -> bytes:
    """Usually flips one bit; otherwise changes one byte or four, or removes some bytes."""
    changed = bytearray(content)
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    place = chance.randrange(begin, len(content)) if footer else chance.randrange(4, begin)
    kind = chance.choice(["bit", "bit", "bit", "byte", "bytes", "gap"])
    if kind == "bit":
        changed[place] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        changed[place] = chance.choice([0, 127, 128, 255])
    elif kind == "bytes":
        changed[place : place + 4] = chance.randbytes(4)
    else:
        del changed[place : place + chance.randrange(1, 20)]
    return bytes(changed)


@pytest.mark.parametrize("verify", ["written", "never"])
@pytest.mark.parametrize("footer", [False, True], ids=["pages", "footer"])
def test_damaged_bytes_give_the_exact_rows_or_an_error_that_names_the_file(
    tmp_path: Path, footer: bool, verify: str
) -> None:
    write_dataset(tmp_path / "data", SCHEMA, [row(number, np.random.default_rng(5)) for number in range(6)])
    (tmp_path / "data" / "_common_metadata").unlink()
    [file] = (tmp_path / "data").glob("*.parquet")
    content, wanted, chance = file.read_bytes(), read(tmp_path / "data"), random.Random(5)
    for _ in range(MUTATIONS):
        file.write_bytes(mutated(content, chance, footer=footer))
        try:
            sound = same(read(tmp_path / "data", verify=verify), wanted) or verify == "never" or footer
        except ParquetryError as error:
            sound = str(tmp_path / "data") in str(error)
        assert sound
