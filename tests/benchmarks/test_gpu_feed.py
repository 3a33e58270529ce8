"""How well a GPU is fed; without one, the benchmark says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import gpu_feed
from benchmarks.catalog import CONTENDERS
from benchmarks.gpu_feed import Fed
from benchmarks.workloads import IMAGE_SHAPES, WORKLOADS, Case


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--profile", "tiny", "--data", str(tmp_path / "data"), "--results", str(tmp_path)]
    gpu_feed.main([*options, "--workloads", "c-tensor", "--cores", "1"])
    said, *_, line = capsys.readouterr().out.strip().splitlines()
    assert said == "c-tensor, 1 processors, step without a loader: this needs a GPU that torch can use"
    assert [cell.strip() for cell in line.strip("|").split("|")][2:] == ["", "", "", ""]
    assert (tmp_path / "gpu-feed.json").exists()


def test_a_feed_is_compared_with_the_step_and_in_bytes() -> None:
    fed = Fed(key="a", cores=4, feed="copied", rows_s=1_000.0, step_rows_s=2_000.0, row_bytes=562_500, cpu_s=1.25)
    line = gpu_feed.table([fed]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["`a` copied", "4", "1,000", "0.56", "0.50", "1.25"]


@pytest.mark.parametrize(("key", "expected"), [("a", 375 * 500 * 3), ("b", 4 * 224 * 224 * 3), ("c-tensor", 320_000)])
def test_the_bytes_of_a_row_are_those_that_reach_the_gpu(key: str, expected: int) -> None:
    case = Case(workload=WORKLOADS[key], variant="", data=Path(), scratch=Path(), rows=1, workers=1)
    assert gpu_feed.row_bytes(case) == expected
    assert IMAGE_SHAPES["images"] == (375, 500, 3)


def test_every_feed_has_its_settings() -> None:
    from benchmarks.contenders.gpu import SETTINGS

    assert {*gpu_feed.FEEDS, "step"} == {*SETTINGS}
    assert not {*gpu_feed.FEEDS} & {*CONTENDERS}, "they are no contenders of the other benchmark"
