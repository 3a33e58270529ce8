"""The track of ratios: one entry a commit, and a picture of each class over commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import track


def results(*rates: float, name: str = "iterable", limit: float = 100.0) -> dict[str, Any]:
    pairs = [
        {"rate": rate, "limit": limit, "rows": 1, "cpu_s": 1.0, "read_bytes": 1, "memory_bytes": 1} for rate in rates
    ]
    runs = [{"cores": 2, "workloads": {"a": {name: {"pairs": pairs}}}}]
    return {"machine": {"processor": "x", "cores": 2}, "runs": runs}


def test_a_commit_has_the_median_ratio_of_its_latest_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, measured = tmp_path / "notebook" / "ratios.json", tmp_path / "track.json"
    for commit, rates in (("one", (50.0, 60.0, 90.0)), ("two", (70.0,)), ("two", (80.0,))):
        monkeypatch.setattr(track, "_commit", lambda commit=commit: (commit, "2026-01-02"))
        measured.write_text(json.dumps(results(*rates)))
        track.main([str(measured), str(target)])
    entries = json.loads(target.read_text())
    assert [(entry["commit"], entry["ratios"]) for entry in entries] == [
        ("one", {"a": {"iterable": 0.6}}),
        ("two", {"a": {"iterable": 0.8}}),
    ]
    drawn = ElementTree.fromstring(target.with_suffix(".svg").read_text())
    (line,) = drawn.iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[0] > heights[1]  # a higher ratio stands higher


def test_results_without_a_class_of_ours_are_refused() -> None:
    with pytest.raises(ValueError, match="needs one of parquetry's classes next to the limit, got none"):
        track.entry_of(results(50.0, name="webdataset"), "one", "2026-01-02")
