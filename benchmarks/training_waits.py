"""Measures how much of its time training waits for data: a small convolutional network and a small MLP, on processors.

Run: ``python -m benchmarks.training_waits``. The step of ``b`` trains on images, those of ``d`` and ``d-pack`` on
numbers; see `benchmarks.training_steps`. Whatever is not the step is waiting. Loader and step share the processors, as
they do without an accelerator. Contenders take turns: each round starts all of them, one after the other. Peers that
are not installed are blank.

What programs for Petastorm gain: ``--workloads b-filter,d --contenders petastorm-torch,shim-torch,iterable --cores 2``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .catalog import CONTENDERS, ROOT, Contender
from .children import Child, ContenderError
from .profiles import PROFILES
from .report import aligned
from .run import Plan, prepare
from .workloads import WORKLOADS, Case, Workload

KEYS = "b,d-pack,d"
NAMES = (
    "iterable,iterable-loader,tf-eager,tfrecord,torch-parquet,litdata,litdata-parquet,huggingface,petastorm-torch,"
    "petastorm-tf,shim-torch"
)
_IN_TENSORFLOW = ("ours_tf", "tfrecord")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How one contender fed the training: medians over the rounds.

    Attributes:
        framework: the framework of the model.
        rows_s: rows per second.
        step_s: seconds of a step.
        cpu_s: processor seconds for each row, of the process and its workers; the step is part of it.
        memory_bytes: of the process and its workers.
        waits: the share of time outside the step, of each round.
        problem: why there are no figures.
    """

    key: str
    contender: str
    framework: str
    rows_s: float = 0.0
    step_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: float = 0.0
    waits: tuple[float, ...] = ()
    problem: str = ""


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints a table, and writes the figures as JSON."""
    options = _parser().parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="parquetry-training-"))
    results: list[Trained] = []
    try:
        for trained in measure(options, scratch):
            results.append(trained)
            print(f"{trained.key}, {trained.contender}: {trained.problem or trained.waits}", flush=True)
            stored = [asdict(one) for one in results]
            (options.results / "training-waits.json").write_text(json.dumps(stored, indent=1))  # after each
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(table(results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=KEYS)
    parser.add_argument("--contenders", default=NAMES)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds per measurement")
    parser.add_argument("--data", type=Path, default=ROOT / "bench-results" / "data")
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results")
    return parser


def measure(options: argparse.Namespace, scratch: Path) -> Iterator[Trained]:
    """Yields the figures of each workload and contender that has it."""
    profile = PROFILES[options.profile]
    plan = Plan(
        workloads=tuple(WORKLOADS[key] for key in options.workloads.split(",")),
        contenders=tuple(CONTENDERS[name] for name in options.contenders.split(",")),
        profile=profile,
        cores=(options.cores,),
        folder=options.data.resolve() / profile.name,
        scratch=scratch,
    )
    log = options.results / "training-waits.log"
    prepare(plan, log)
    for workload in plan.workloads:
        cases = {one: _case(plan, workload, one) for one in plan.contenders if workload.key in one.workloads}
        rounds: dict[Contender, list[dict[str, Any]]] = {contender: [] for contender in cases}
        problems: dict[Contender, str] = {}
        for contender, case in list(cases.items()) * options.rounds:
            try:
                if contender not in problems:
                    rounds[contender].append(_measure_one(options, case, contender, log))
            except ContenderError as error:
                problems[contender] = str(error)
        for contender, case in cases.items():
            trained = Trained(key=workload.key, contender=contender.title, framework=case.trains)
            if contender in problems:
                yield replace(trained, problem=problems[contender])
            else:
                yield _with_figures(trained, rounds[contender])


def framework_of(contender: Contender) -> str:
    """Returns the framework whose tensors a contender gives."""
    return "tensorflow" if contender.module in _IN_TENSORFLOW or contender.variant.startswith("tf") else "torch"


def _case(plan: Plan, workload: Workload, contender: Contender) -> Case:
    own = plan.scratch / f"{workload.key}-{contender.name}"
    own.mkdir()
    return Case(
        workload=workload,
        variant=contender.variant,
        data=plan.folder / workload.data,
        scratch=own,
        rows=plan.profile.rows[workload.data],
        workers=plan.cores[0],
        trains=framework_of(contender),
    )


def _measure_one(options: argparse.Namespace, case: Case, contender: Contender, log: Path) -> dict[str, Any]:
    with Child(contender, case, cores=options.cores, log=log) as child:
        return child.measure(options.seconds / 2, options.seconds)


def _with_figures(trained: Trained, rounds: Sequence[dict[str, Any]]) -> Trained:
    def median(what: str, per: str) -> float:
        return float(statistics.median(each[what] / each[per] for each in rounds))

    return replace(
        trained,
        rows_s=median("rows", "elapsed_s"),
        step_s=median("step_s", "batches"),
        cpu_s=median("cpu_s", "rows"),
        memory_bytes=float(statistics.median(each["memory_bytes"] for each in rounds)),
        waits=tuple(1 - each["step_s"] / each["elapsed_s"] for each in rounds),
    )


def table(results: Sequence[Trained]) -> str:
    """Returns one line for each workload and contender."""
    heads = ["", "model in", "rows/s", "step ms", "CPU us/row", "MiB", "waits", "range"]
    return aligned(heads, [_cells(one) for one in results])


def _cells(one: Trained) -> list[str]:
    name = [f"`{one.key}` {one.contender}", one.framework]
    if one.problem:
        return [*name, "", "", "", "", "", ""]
    shares = [f"{share:.1%}" for share in (statistics.median(one.waits), min(one.waits), max(one.waits))]
    figures = [f"{one.rows_s:,.0f}", f"{1e3 * one.step_s:.1f}", f"{1e6 * one.cpu_s:,.1f}"]
    figures.append(f"{one.memory_bytes / 2**20:,.0f}")
    return [*name, *figures, shares[0], f"{shares[1]} to {shares[2]}"]


if __name__ == "__main__":
    main()
