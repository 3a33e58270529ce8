"""Measures contenders on workloads against the machine's limit: ``python -m benchmarks.run`` (or ``make bench``).

Writes the data once. Then, for each workload, starts each contender in its own process and environment, and measures it
several times, each time right next to the limit. Prints a table; writes JSON, Markdown and, if matplotlib is
installed, a plot to ``bench-results/``. Peers that are not installed are blank cells.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import data, report
from .catalog import CONTENDERS, LIMIT, ROOT, Contender
from .children import Child, ContenderError, SlowStore
from .prepare import needs_preparing
from .profiles import PROFILES, Profile
from .workloads import WORKLOADS, Case, Workload

QUICK = "threads,tf-eager,tf-graph,iterable,tfrecord,petastorm-tf,huggingface"
QUICK_WORKLOADS = "a,c-ndarray,c-tensor,d,e,f,g,h,i"
SLOW_STORE_LATENCY_S = 0.03
SECONDS_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run measures, and where it stores files."""

    workloads: tuple[Workload, ...]
    contenders: tuple[Contender, ...]
    profile: Profile
    cores: tuple[int, ...]
    folder: Path
    scratch: Path


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints and writes the results."""
    options = _parser().parse_args(arguments)
    results_folder: Path = options.results
    results_folder.mkdir(parents=True, exist_ok=True)
    target = results_folder / options.name
    scratch = Path(tempfile.mkdtemp(prefix="parquetry-bench-"))
    try:
        plan = _plan(options, scratch)
        for results in measure(plan, log=results_folder / "peers.log"):
            target.with_suffix(".json").write_text(json.dumps(results, indent=1))  # after each workload
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = report.markdown(results)
    target.with_suffix(".md").write_text(text)
    print(text)
    if options.plot:
        report.plot(results, target.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick", help="how much data, and how long")
    parser.add_argument("--workloads", help=f"comma-separated keys, or 'all': {', '.join(WORKLOADS)}")
    parser.add_argument("--contenders", help=f"comma-separated names, or 'all': {', '.join(CONTENDERS)}")
    parser.add_argument("--rounds", type=int, help="measurements of each contender")
    parser.add_argument("--seconds", type=float, help="seconds per measurement")
    parser.add_argument(
        "--cores", default="", help="comma-separated numbers of processors to measure with (default: all processors)"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "bench-results" / "data", help="where the data is kept")
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results", help="where results go")
    parser.add_argument("--name", default="bench", help="name of the result files (default: %(default)s)")
    parser.add_argument("--no-plot", dest="plot", action="store_false", help="do not draw a plot")
    return parser


def _plan(options: argparse.Namespace, scratch: Path) -> Plan:
    profile = PROFILES[options.profile]
    profile = replace(profile, rounds=options.rounds or profile.rounds, span_s=options.seconds or profile.span_s)
    full = options.profile == "full"
    keys = options.workloads or ("all" if full else QUICK_WORKLOADS)
    names = options.contenders or ("all" if full else QUICK)
    return Plan(
        workloads=tuple(WORKLOADS[key] for key in _chosen(keys, WORKLOADS)),
        contenders=tuple(CONTENDERS[name] for name in _chosen(names, CONTENDERS) if name != LIMIT),
        profile=profile,
        cores=tuple(int(text) for text in options.cores.split(",") if text) or (len(os.sched_getaffinity(0)),),
        folder=options.data.resolve() / profile.name,
        scratch=scratch,
    )


def _chosen(text: str, known: Iterable[str]) -> list[str]:
    """Splits a comma-separated list of names. A letter also stands for all workloads named with it and a hyphen."""
    if text == "all":
        return list(known)
    chosen = []
    for name in filter(None, re.split(r"[,\s]+", text)):
        found = [one for one in known if one == name] or [one for one in known if one.startswith(f"{name}-")]
        if not found:
            raise SystemExit(f"expected names out of {', '.join(known)}, got {name!r}.")
        chosen += found
    return chosen


def measure(plan: Plan, *, log: Path) -> Iterator[dict[str, Any]]:
    """Yields the figures so far after each workload, as the plain data that `report` shows and JSON stores."""
    prepare(plan, log)
    runs: list[dict[str, Any]] = []
    for cores in plan.cores:
        tables: dict[str, Any] = {}
        runs.append({"cores": cores, "workloads": tables})
        for workload in plan.workloads:
            with _case(plan, workload, cores) as case:
                tables[workload.key] = _measure_workload(plan, case, cores, log)
            yield {"machine": _machine(), "profile": plan.profile.name, "rounds": plan.profile.rounds, "runs": runs}


def prepare(plan: Plan, log: Path) -> None:
    """Writes missing data, and reads all of it once so that every contender reads from memory."""
    for workload in plan.workloads:
        folder = plan.folder / workload.data
        _say(f"data for {workload.key}")
        data.prepare(folder, workload.data, plan.profile.rows[workload.data])
        for contender in plan.contenders:
            if workload.key in contender.workloads and needs_preparing(contender, folder):
                command = [str(contender.python), "-m", "benchmarks.prepare", contender.module, str(folder)]
                with log.open("ab") as output:
                    subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False)
        if workload.data != "groups":
            for path in folder.rglob("*"):
                if path.is_file():
                    path.read_bytes()


@contextmanager
def _case(plan: Plan, workload: Workload, cores: int) -> Iterator[Case]:
    with ExitStack() as stack:
        folder = plan.folder / workload.data
        url = ""
        if workload.key == "j":
            url = stack.enter_context(SlowStore(folder, latency_s=SLOW_STORE_LATENCY_S)).url
        rows = plan.profile.rows[workload.data]
        yield Case(workload=workload, variant="", data=folder, scratch=plan.scratch, rows=rows, workers=cores, url=url)


def _measure_workload(plan: Plan, case: Case, cores: int, log: Path) -> dict[str, Any]:
    measure_one = _rates if case.workload.kind == "rate" else _steps
    limit = CONTENDERS[LIMIT]
    with ExitStack() as stack:
        beside = None
        if case.workload.kind == "rate":
            own = replace(case, scratch=_scratch(plan, limit, case))
            try:
                beside = stack.enter_context(Child(limit, own, cores=cores, log=log))
            except ContenderError as error:  # rates only, no ratios
                _say(f"no limit for {case.workload.key}: {error}")
        table: dict[str, Any] = {}
        wanted = [one for one in plan.contenders if case.workload.key in one.workloads]
        if case.workload.kind != "rate" and case.workload.key in limit.workloads:
            wanted.insert(0, limit)
        for number, contender in enumerate(wanted, 1):
            _say(f"{case.workload.key}, {cores} cores, {number} of {len(wanted)}: {contender.title}")
            own = replace(case, variant=contender.variant, scratch=_scratch(plan, contender, case))
            try:
                table[contender.name] = {"status": "ok", **measure_one(plan, contender, own, cores, log, beside)}
            except ContenderError as error:
                status = "missing" if error.missing else "failed"
                table[contender.name] = {"status": status, "message": str(error)}
            shutil.rmtree(own.scratch, ignore_errors=True)
    return table


def _rates(plan: Plan, contender: Contender, case: Case, cores: int, log: Path, beside: Child | None) -> dict[str, Any]:
    """Measures pairs of stretches; the order alternates between rounds."""
    profile = plan.profile
    pairs = []
    with Child(contender, case, cores=cores, log=log) as child:
        for number in range(profile.rounds):
            order = (beside, child) if number % 2 == 0 else (child, beside)
            measured = {one: one.measure(profile.warm_s, profile.span_s) for one in order if one is not None}
            own = measured[child]
            limit = measured[beside] if beside else None
            pairs.append({**own, "rate": _rate(own), "limit": _rate(limit) if limit else 0.0})
        return {**child.ready, "event": "measured", "pairs": pairs}


def _steps(plan: Plan, contender: Contender, case: Case, cores: int, log: Path, beside: Child | None) -> dict[str, Any]:
    """Measures the seconds of single steps, each round in a new process."""
    del beside
    rounds = []
    for _ in range(min(plan.profile.rounds, SECONDS_ROUNDS)):
        shutil.rmtree(case.scratch, ignore_errors=True)
        case.scratch.mkdir(parents=True)
        with Child(contender, case, cores=cores, log=log) as child:
            rounds.append(child.steps())
            settings = child.ready["settings"]
    return {"settings": settings, "rounds": rounds}


def _rate(span: dict[str, Any]) -> float:
    return float(span["rows"] / span["elapsed_s"])


def _scratch(plan: Plan, contender: Contender, case: Case) -> Path:
    path = plan.scratch / f"{case.workload.key}-{contender.name}"
    path.mkdir(exist_ok=True)
    return path


def _machine() -> dict[str, Any]:
    """Describes the machine of the measurement."""
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processor": found.group(1) if found else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "load": os.getloadavg()[0],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
