"""Tables of results."""

from __future__ import annotations

from typing import Any

from benchmarks import report
from benchmarks.workloads import WORKLOADS

MACHINE = {"processor": "P", "cores": 2, "system": "S", "python": "3.11", "time": "now", "load": 0.5}


def pair(rate: float, limit: float) -> dict[str, Any]:
    return {"rate": rate, "limit": limit, "rows": 1_000, "cpu_s": 0.5, "read_bytes": 4_000, "memory_bytes": 3 << 20}


def results(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"machine": MACHINE, "profile": "tiny", "rounds": 2, "runs": list(runs)}


def measured(*pairs: dict[str, Any]) -> dict[str, Any]:
    return {"status": "ok", "settings": "as it comes", "first_batch_s": 0.25, "pairs": list(pairs)}


def cells(text: str, name: str) -> list[str]:
    """The cells of the line that begins with a name."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_gives_the_medians_with_their_ranges() -> None:
    text = report.rate_table(
        WORKLOADS["a"], {"threads": measured(pair(800, 1_000), pair(900, 1_000), pair(700, 1_000))}
    )
    assert cells(text, "the machine's limit")[1] == "1,000"
    assert cells(text, "**Pipeline, threads**") == [
        "**Pipeline, threads**",
        "800",
        "700 to 900",
        "0.80",
        "0.70 to 0.90",
        "0.5",
        "4",
        "3",
        "0.25",
    ]


def test_a_peer_that_is_missing_is_blank_and_one_that_failed_says_why() -> None:
    table = {
        "grain": {"status": "missing", "message": "No module named 'grain'"},
        "spdl": {"status": "failed", "message": "ValueError: no"},
    }
    text = report.markdown(results({"cores": 2, "workloads": {"a": table}}))
    assert set(cells(text, "Grain")[1:]) == {""}
    assert set(cells(text, "SPDL")[1:]) == {""}
    assert "- SPDL: ValueError: no" in text
    assert "No module named" not in text


def test_steps_are_seconds_and_the_resume_is_compared_with_the_warm_start() -> None:
    rounds = [
        {"seconds": {"cold": 0.5, "warm": 0.02, "resume at 90 %": 0.021}, "memory_bytes": 1 << 20},
        {"seconds": {"cold": 0.4, "warm": 0.01, "resume at 90 %": 0.011}, "memory_bytes": 2 << 20},
    ]
    text = report.step_table(WORKLOADS["h"], {"threads": {"status": "ok", "rounds": rounds}})
    found = cells(text, "**Pipeline, threads**")
    assert found[1:3] == ["0.450 (0.400 to 0.500)", "0.015 (0.010 to 0.020)"]
    assert found[4:] == ["2", "1.07"] or found[4:] == ["2", "1.08"]


def test_several_numbers_of_cores_give_a_table_of_scaling() -> None:
    runs = [
        {"cores": n, "workloads": {"a": {"iterable": measured(pair(rate, 2_000))}}} for n, rate in ((1, 500), (2, 950))
    ]
    text = report.markdown(results(*runs))
    assert "### (a) JPEG 500 x 375 to uint8, shuffled, 1 cores" in text
    scaling = text.partition("### Scaling")[2].partition("### What")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in scaling.splitlines() if "| 2 " in line]
    assert lines == [
        ["(a) the machine's limit", "2", "1.00", "0.50"],
        ["(a) **ParquetIterable**", "2", "1.90", "0.95"],
    ]


def test_the_options_of_each_are_listed_below() -> None:
    text = report.markdown(results({"cores": 2, "workloads": {"a": {"iterable": measured(pair(1, 2))}}}))
    assert text.endswith("### What each was given\n\n- **ParquetIterable**: as it comes\n")
