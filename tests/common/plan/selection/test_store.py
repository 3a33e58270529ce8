"""Cached selections written by someone else: recomputed, never read beyond the dataset."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build

from parquetry.common.base.errors import EmptySelectionError
from parquetry.common.plan.selection.store import read_selection
from parquetry.common.storage.file_cache import UNREADABLE

ROWS = np.array([10, 10])
META = {"windows": True, "matched": 3, "reports": []}
SOUND: dict[str, Any] = {
    "before": np.array([0, 10, 12]),
    "whole": np.array([True, False]),
    "start": np.array([0, 1]),
    "values": np.array([0, 3, 9], np.int32),
    "starts": np.array([0, 4, 10]),
    "steps": np.array([0, 1]),
    "meta": np.array(json.dumps(META)),
}
HOSTILE: dict[str, dict[str, Any]] = {
    "more row groups": {"before": np.array([0, 10, 12, 12])},
    "rows that run backwards": {"before": np.array([0, 20, 12])},
    "more rows than there are": {"before": np.array([0, 10, 1 << 62])},
    "a row behind its row group": {"values": np.array([0, 3, 10], np.int32)},
    "a negative row": {"values": np.array([0, -3, 9], np.int32)},
    "values that lie elsewhere": {"start": np.array([0, 1 << 40])},
    "values in front of the first": {"start": np.array([0, -2])},
    "floats": {"before": np.array([0, 10, np.nan])},
    "a window that ends behind the last row": {"starts": np.array([0, 4, 11])},
    "a window before the first row": {"starts": np.array([-1, 4, 10])},
    "steps that wrap": {"steps": np.array([0, (1 << 63) - 1])},
    "no steps": {"steps": np.zeros(0, np.int64)},
    "a run that ends behind the last row": {"edges": np.array([0, 5, 13])},
    "a run that begins before the first row": {"edges": np.array([-1, 12])},
    "runs that run backwards": {"edges": np.array([0, 12, 5, 12])},
    "steps that wrap inside runs": {"edges": np.array([0, 12]), "steps": np.array([0, -(1 << 63)])},
    "a window behind the last run": {"edges": np.array([0, 12]), "starts": np.array([0, 12])},
    "too few measures": {"measured": np.zeros(3)},
    "another rank": {"whole": np.array(True)},
    "objects": {"starts": np.array([b"x"], object)},
    "nested meta": {"meta": np.array("[" * 100_000)},
    "an odd match": {"meta": np.array(json.dumps({**META, "matched": "many"}))},
    "gigabytes": {"values": np.zeros(1 << 23, np.int32)},
}


def stored(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=True, **arrays)
    return stream.getvalue()


def test_a_sound_one_is_read() -> None:
    selection = read_selection(stored(SOUND), ROWS)
    assert selection.item_rows(np.arange(3)).tolist() == [[0, 1], [4, 5], [10, 11]]
    assert selection.rows.of(1).tolist() == [3, 9]


@pytest.mark.parametrize("name", HOSTILE)
def test_one_of_other_rows_is_refused(name: str) -> None:
    with pytest.raises(UNREADABLE):
        read_selection(stored({**SOUND, **HOSTILE[name]}), ROWS)


@pytest.mark.parametrize("change", [lambda content: content[:200], lambda content: b"", lambda content: b"[" * 100_000])
def test_a_hostile_file_with_its_checksum_is_made_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[bytes], bytes],
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    built = build(tmp_path / "rows", [[5, 5]], names=("id",))
    expected = [int(row["id"]) for row in built.pipeline("id").where([("id", ">", 6)])]
    (path,) = (tmp_path / "kept" / "selections").glob("*.npz")
    content = change(path.read_bytes()[16:])
    path.write_bytes(hashlib.blake2b(content, digest_size=16).digest() + content)
    assert [int(row["id"]) for row in built.pipeline("id").where([("id", ">", 6)])] == expected == [7, 8, 9]
    assert f"{path}: kept file is damaged" in caplog.text


def test_a_selection_without_windows_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    built = build(tmp_path / "rows", [[2]], names=("id",))
    for _ in range(2):
        with pytest.raises(EmptySelectionError), caplog.at_level(logging.WARNING):
            list(built.pipeline("id").ngram(length=4))
        assert [path.suffix for path in (tmp_path / "kept" / "selections").iterdir() if path.suffix] == [".npz"]
    assert "damaged" not in caplog.text
