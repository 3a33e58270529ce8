"""Measures whether a GPU waits for its batches: training steps fed in several ways, beside steps that need no loader.

Run: ``python -m benchmarks.gpu_feed --cores 2,8``. A ResNet-50 trains on images (workloads ``a``, ``b``). The step of
``c-tensor`` only reads its lidar sweeps: it measures the copies. "Of the step" compares with steps on one batch that
stays on the GPU, measured in turns: 1.00 means that the GPU never waits. Needs torch with CUDA, and torchvision.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import data
from .catalog import CONTENDERS, ROOT, Contender
from .children import Child, ContenderError
from .profiles import PROFILES, Profile
from .report import aligned
from .workloads import CROP, CROPPED, IMAGE_SHAPES, LIDAR_SHAPE, WORKLOADS, Case

KEYS = ("a", "b", "c-tensor")
_HOST = CONTENDERS["iterable"]
_FEEDS = {
    "blocking": "copied in the loop",
    "pinned": "pinned by torch, copied without waiting",
    "ahead": "prefetch_to_device",
    "sidecar-ahead": "prefetch_to_device, sidecar",
    "workers-ahead": "prefetch_to_device, loader workers",
}
_STEP = Contender(name="step", title="step without a loader", module="gpu", variant="step", workloads=KEYS)
FEEDS = {
    name: Contender(name=name, title=title, module="gpu", variant=name, workloads=KEYS, ours=True)
    for name, title in _FEEDS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What one feed did: medians over the rounds.

    Attributes:
        rows_s: rows per second.
        step_rows_s: rows per second of the step without a loader; 0 = not compared.
        row_bytes: bytes of a row as it reaches the GPU.
        cpu_s: seconds of processor time for 1,000 rows.
        problem: why there are no figures.
    """

    key: str
    cores: int
    feed: str
    rows_s: float = 0.0
    step_rows_s: float = 0.0
    row_bytes: int = 0
    cpu_s: float = 0.0
    problem: str = ""


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints a table, and writes the figures as JSON."""
    options = _parser().parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    found: list[Fed] = []
    for fed in measure(options):
        found.append(fed)
        print(f"{fed.key}, {fed.cores} processors, {fed.feed}: {fed.problem or round(fed.rows_s)}", flush=True)
        stored = [asdict(one) for one in found]
        (options.results / "gpu-feed.json").write_text(json.dumps(stored, indent=1))  # after each
    print(table(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(KEYS))
    parser.add_argument("--feeds", default=",".join(_FEEDS))
    parser.add_argument(
        "--cores", default=str(len(os.sched_getaffinity(0))), help="comma-separated numbers of processors"
    )
    parser.add_argument("--profile", choices=sorted(PROFILES), default="full")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--data", type=Path, default=ROOT / "bench-results" / "data")
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results")
    return parser


def measure(options: argparse.Namespace) -> Iterator[Fed]:
    """Yields the figures of each workload, number of processors, and feed."""
    profile = PROFILES[options.profile]
    for key in options.workloads.split(","):
        folder = options.data.resolve() / profile.name / WORKLOADS[key].data
        data.prepare(folder, WORKLOADS[key].data, profile.rows[WORKLOADS[key].data])
        for cores in map(int, options.cores.split(",")):
            with tempfile.TemporaryDirectory(prefix="parquetry-gpu-") as scratch:
                case = _case(profile, key, folder, Path(scratch), cores)
                yield from _measure_case(options, case, cores, options.results / "gpu-feed.log")


def _case(profile: Profile, key: str, folder: Path, scratch: Path, cores: int) -> Case:
    workload = WORKLOADS[key]
    rows = profile.rows[workload.data]
    return Case(workload=workload, variant="", data=folder, scratch=scratch, rows=rows, workers=cores)


def _measure_case(options: argparse.Namespace, case: Case, cores: int, log: Path) -> Iterator[Fed]:
    key = case.workload.key
    try:
        with Child(_STEP, _variant(case, _STEP), cores=cores, log=log) as step:
            for feed in (_HOST, *(FEEDS[name] for name in options.feeds.split(","))):
                beside = step if feed is not _HOST else None
                yield _measure_feed(options, case, feed, beside, cores, log)
    except ContenderError as error:
        yield Fed(key=key, cores=cores, feed=_STEP.title, problem=str(error))


def _measure_feed(
    options: argparse.Namespace, case: Case, feed: Contender, step: Child | None, cores: int, log: Path
) -> Fed:
    key = case.workload.key
    try:
        with Child(feed, _variant(case, feed), cores=cores, log=log) as child:
            measured, steps = [], []
            for _ in range(options.rounds):
                steps += [] if step is None else [step.measure(options.seconds / 4, options.seconds)]
                measured.append(child.measure(options.seconds / 2, options.seconds))
    except ContenderError as error:
        return Fed(key=key, cores=cores, feed=feed.title, problem=str(error))
    return Fed(
        key=key,
        cores=cores,
        feed=feed.title,
        rows_s=_rows_s(measured),
        step_rows_s=_rows_s(steps),
        row_bytes=row_bytes(case),
        cpu_s=statistics.median(1000 * span["cpu_s"] / span["rows"] for span in measured),
    )


def _variant(case: Case, feed: Contender) -> Case:
    return replace(case, variant=feed.variant)


def _rows_s(measured: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(span["rows"] / span["elapsed_s"] for span in measured) if measured else 0.0


def row_bytes(case: Case) -> int:
    """Returns the bytes of the large field of a row, as it is copied to the GPU."""
    if case.workload.data == "lidar":
        return 4 * LIDAR_SHAPE[0] * LIDAR_SHAPE[1]
    if case.workload.key in CROPPED:
        return 4 * CROP * CROP * 3
    height, width, channels = IMAGE_SHAPES[case.workload.data]
    return height * width * channels


def table(found: Sequence[Fed]) -> str:
    """Returns one line for each feed."""
    heads = ["", "processors", "rows/s", "GB/s", "of the step", "CPU s / 1000"]
    return aligned(heads, [_cells(fed) for fed in found])


def _cells(fed: Fed) -> list[str]:
    name = f"`{fed.key}` {fed.feed}"
    if fed.problem:
        return [name, str(fed.cores), "", "", "", ""]
    share = f"{fed.rows_s / fed.step_rows_s:.2f}" if fed.step_rows_s else ""
    return [
        name,
        str(fed.cores),
        f"{fed.rows_s:,.0f}",
        f"{fed.rows_s * fed.row_bytes / 1e9:.2f}",
        share,
        f"{fed.cpu_s:.2f}",
    ]


if __name__ == "__main__":
    main()
