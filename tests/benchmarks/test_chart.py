"""The chart of ``docs/benchmarks.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import report
from benchmarks.chart import chart

SVG = "{http://www.w3.org/2000/svg}"


def measured(*shares: float) -> dict[str, Any]:
    costs = {"rows": 1, "cpu_s": 1.0, "read_bytes": 1, "memory_bytes": 1}
    return {"status": "ok", "pairs": [{"rate": 100 * share, "limit": 100, **costs} for share in shares]}


def results(**workloads: dict[str, Any]) -> dict[str, Any]:
    tables = {key.replace("_", "-"): table for key, table in workloads.items()}
    return {"machine": {"processor": "P & Q", "cores": 2}, "runs": [{"cores": 2, "workloads": tables}]}


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def bars(svg: str) -> list[tuple[str, float]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [(bar.attrib["class"], float(bar.attrib["width"])) for bar in found]


def test_a_bar_is_as_long_as_the_median_share_of_the_limit() -> None:
    svg = chart(results(a={"grain": measured(0.4, 0.5, 0.9), "iterable": measured(1.0)}))
    (ours, whole), (other, half) = bars(svg)
    assert (ours, other) == ("ours", "other")
    assert half == pytest.approx(whole / 2, abs=0.1)
    assert {"1.00", "0.50", "Grain", "ParquetIterable"} <= set(texts(svg))


def test_our_results_come_first_and_missing_ones_have_no_bar() -> None:
    table = {"spdl": measured(0.9), "grain": measured(0.95), "threads": measured(0.5), "tfrecord": {"status": "failed"}}
    svg = chart(results(a=table, c_ndarray={"threads": measured(1.5), "litdata": measured(0.001)}, k={}))
    assert texts(svg)[:4] == ["Pipeline, threads", "Grain", "SPDL", "LitData, optimized"]
    assert len(bars(svg)) == 5
    assert "<0.01" in texts(svg)


def test_results_without_the_workloads_are_refused() -> None:
    with pytest.raises(ValueError, match="needs one of the workloads a, c-ndarray, d, got k"):
        chart(results(k={"iterable": measured(0.5)}))


def test_the_command_writes_the_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results(d={"iterable": measured(0.5)})
    (tmp_path / "bench.json").write_text(json.dumps(found))
    report.main([str(tmp_path / "bench.json"), "--svg", str(tmp_path / "chart.svg")])
    assert (tmp_path / "chart.svg").read_text() == chart(found)
    assert capsys.readouterr().out == ""
