"""Shows results as Markdown tables, for people and the docs, and as a picture if matplotlib is installed.

Turns the plain data of `benchmarks.run.measure` into text. A contender that was not measured is always a blank cell,
with the reason for a failure below the table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .catalog import CONTENDERS, LIMIT
from .chart import chart
from .figures import Spread, Summary, speed_up, summary_of
from .workloads import WORKLOADS, Workload


def markdown(results: Mapping[str, Any]) -> str:
    """Returns all tables of a run."""
    machine = results["machine"]
    cores = ", ".join(str(run["cores"]) for run in results["runs"])
    parts = [
        f"{machine['processor']}, {machine['cores']} processors (used: {cores}), {machine['system']}; "
        f"Python {machine['python']}; {machine['time']}; load {machine['load']:.1f} at the end; "
        f"profile {results['profile']}, {results['rounds']} rounds."
    ]
    for run in results["runs"]:
        for key, table in run["workloads"].items():
            workload = WORKLOADS[key]
            parts.append(f"### ({key}) {workload.title}" + (f", {run['cores']} cores" if _scaled(results) else ""))
            parts.append(rate_table(workload, table) if workload.kind == "rate" else step_table(workload, table))
            parts += _failures(table)
    if _scaled(results):
        parts.append(scaling_table(results))
    parts.append(settings_list(results))
    return "\n\n".join(parts) + "\n"


def rate_table(workload: Workload, table: Mapping[str, Any]) -> str:
    """Returns one line per contender, the limit first."""
    heads = ["", workload.unit, "range", "of the limit", "range", "CPU s / 1000", "read B/row", "memory MiB", "first s"]
    lines = []
    found = {name: summary_of(entry) for name, entry in table.items()}
    limit = _limit_of(table)
    if limit is not None:
        lines.append([CONTENDERS[LIMIT].title, _count(limit.median), _range(limit, _count), "1.00"])
    for name, figures in found.items():
        first = table[name].get("first_pass_s", table[name].get("first_batch_s"))
        lines.append([_title(name), *_rate_cells(figures), _seconds(first)])
    return aligned(heads, lines)


def _rate_cells(figures: Summary | None) -> list[str]:
    if figures is None:
        return [""] * 7
    ratio = figures.ratio
    return [
        _count(figures.rate.median),
        _range(figures.rate, _count),
        f"{ratio.median:.2f}" if ratio else "",
        _range(ratio, "{:.2f}".format) if ratio else "",
        "" if figures.cpu_s_per_1000 is None else f"{figures.cpu_s_per_1000:.3g}",
        "" if figures.read_bytes_per_row is None else _count(figures.read_bytes_per_row),
        _count(figures.memory_bytes / 2**20),
    ]


def step_table(workload: Workload, table: Mapping[str, Any]) -> str:
    """Returns one line per contender, with the seconds of each step."""
    heads = ["", *(f"{name}, s" for name in workload.measures), "memory MiB"]
    resumes = "resume at 90 %" in workload.measures
    heads += ["resume / warm"] if resumes else []
    lines = []
    for name, entry in table.items():
        rounds = entry.get("rounds", ())
        spreads = [Spread.of(_known(rounds, measure)) for measure in workload.measures]
        cells = [f"{one.median:.3f} ({one.low:.3f} to {one.high:.3f})" if one else "" for one in spreads]
        memory = Spread.of(one["memory_bytes"] / 2**20 for one in rounds)
        cells.append(_count(memory.high) if memory else "")
        if resumes:
            ratio = Spread.of(
                r / w for r, w in zip(_known(rounds, "resume at 90 %"), _known(rounds, "warm"), strict=False)
            )
            cells.append(f"{ratio.median:.2f}" if ratio else "")
        lines.append([_title(name), *cells])
    return aligned(heads, lines)


def scaling_table(results: Mapping[str, Any]) -> str:
    """Returns rates by number of processors: speedup over the fewest, and share of linear; the limit first."""
    rates: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for run in results["runs"]:
        for key, table in run["workloads"].items():
            spreads = {name: figures.rate for name, entry in table.items() if (figures := summary_of(entry))}
            limit = _limit_of(table)
            for name, spread in (({LIMIT: limit} if limit else {}) | spreads).items():
                rates.setdefault((key, name), []).append((run["cores"], spread.median))
    lines = []
    for (key, name), found in rates.items():
        for cores, times, share in speed_up(found):
            lines.append([f"({key}) {_title(name)}", str(cores), f"{times:.2f}", f"{share:.2f}"])
    return "### Scaling\n\n" + aligned(["", "cores", "times", "of linear"], lines)


def settings_list(results: Mapping[str, Any]) -> str:
    """Lists the settings of each contender."""
    given: dict[str, str] = {}
    for run in results["runs"]:
        for table in run["workloads"].values():
            given |= {name: entry["settings"] for name, entry in table.items() if "settings" in entry}
    return "### What each was given\n\n" + "\n".join(f"- {_title(name)}: {text}" for name, text in given.items())


def aligned(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table whose columns also line up as plain text."""
    full = [list(heads), *([*line, *[""] * (len(heads) - len(line))] for line in lines)]
    widths = [max(3, *(len(line[place]) for line in full)) for place in range(len(heads))]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in full
    ]
    return "\n".join([rows[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rows[1:]])


def plot(results: Mapping[str, Any], path: Path) -> bool:
    """Plots bars of the ratio to the limit, one panel per workload; ``False`` if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    run = results["runs"][-1]
    panels = {key: table for key, table in run["workloads"].items() if WORKLOADS[key].kind == "rate"}
    if not panels:
        return False
    figure = Figure(figsize=(9, 3.2 * len(panels)), layout="constrained")
    for axes, (key, table) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        found = {name: one for name, entry in table.items() if (one := summary_of(entry)) and one.ratio}
        names = list(reversed(found))
        ratios = [found[name].ratio for name in names]
        errors = [[r.median - r.low for r in ratios if r], [r.high - r.median for r in ratios if r]]
        colors = ["tab:blue" if CONTENDERS[name].ours else "tab:gray" for name in names]
        axes.barh(
            [CONTENDERS[name].title for name in names], [r.median for r in ratios if r], xerr=errors, color=colors
        )
        axes.axvline(1.0, color="black", linewidth=1)
        axes.set_title(f"({key}) {WORKLOADS[key].title}", fontsize=9)
        axes.set_xlabel("of the limit", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.savefig(path, dpi=120)
    return True


def _failures(table: Mapping[str, Any]) -> list[str]:
    lines = [f"- {_title(name)}: {one['message']}" for name, one in table.items() if one["status"] == "failed"]
    return ["Failed:\n\n" + "\n".join(lines)] if lines else []


def _limit_of(table: Mapping[str, Any]) -> Spread | None:
    """Returns the limit's rates over all pairs of a table."""
    return Spread.of(pair["limit"] for entry in table.values() for pair in entry.get("pairs", ()) if pair["limit"])


def _known(rounds: Sequence[Mapping[str, Any]], measure: str) -> list[float]:
    return [one["seconds"][measure] for one in rounds if measure in one["seconds"]]


def _scaled(results: Mapping[str, Any]) -> bool:
    return len(results["runs"]) > 1


def _title(name: str) -> str:
    title = CONTENDERS[name].title
    return f"**{title}**" if CONTENDERS[name].ours else title


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(spread: Spread, form: Callable[[float], str]) -> str:
    return f"{form(spread.low)} to {form(spread.high)}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables of a JSON file, or draws its chart."""
    parser = argparse.ArgumentParser(description="Shows the results of benchmarks.run.")
    parser.add_argument("results", type=Path, help="the JSON file of a run")
    parser.add_argument("--svg", type=Path, help="draw the README's chart there, instead of printing the tables")
    options = parser.parse_args(arguments)
    results = json.loads(options.results.read_text())
    if options.svg:
        options.svg.write_text(chart(results))
    else:
        print(markdown(results), end="")


if __name__ == "__main__":
    main()
