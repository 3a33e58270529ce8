"""Commands that check the data and this machine: ``lint``, ``verify``, ``stats``, ``doctor``, ``cache``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from .looking import Chain, finding_lines, opened, opened_to_show, with_refused
from .output import FINE, FOUND_PROBLEMS, Shown, StorageOptions, Url, command, facts, storage_options_of, table

if TYPE_CHECKING:
    from ..reports.kept_files import CacheReport
    from ..reports.verifying import Damage

Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Row groups to check in parallel; default: one per processor.")
]
_STYLES = {"fine": "green", "note": "bold yellow", "problem": "bold red"}


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    command(app, "parquetry lint data/train", "parquetry lint data/train --strict && echo fine")(lint)
    command(
        app,
        "parquetry verify data/train",
        "parquetry verify s3://bucket/train --workers 32",
        "parquetry verify photos "
        '\'select(UnischemaField("image", "uint8", (None, None, 3), CompressedImageCodec("jpeg")))\'',
    )(verify)
    command(
        app,
        'parquetry stats data/train \'select("image", "label")\'',
        "parquetry stats data/train --rows 10000",
        "parquetry stats data/train --keep",
    )(stats)
    command(app, "parquetry doctor")(doctor)
    cache = typer.Typer(help="Files that parquetry keeps between runs.", no_args_is_help=True)
    command(cache, "parquetry cache ls", "parquetry cache ls --directory /scratch/cache", name="ls")(cache_ls)
    command(cache, "parquetry cache clear selections", name="clear")(cache_clear)
    command(cache, "parquetry cache warm data/train 'where(field(\"speed\") > 3)'", name="warm")(cache_warm)
    app.add_typer(cache, name="cache")


def lint(
    url: Url,
    strict: Annotated[bool, typer.Option("--strict", help="Count notes as problems too.")] = False,
    storage_option: StorageOptions = None,
) -> Shown:
    """Report what makes training from a dataset slow or incorrect. Exit status 1 if there is a problem."""
    from ..reports.linting import lint as lint_dataset

    findings = lint_dataset(url, storage_options=storage_options_of(storage_option))
    bad = [finding for finding in findings if strict or finding.level == "problem"]
    return Shown(findings, tuple(finding_lines(findings)), FOUND_PROBLEMS if bad else FINE)


def verify(
    url: Url,
    chain: Chain = "",
    workers: Workers = None,
    round_trips: Annotated[int, typer.Option(min=0, help="Rows per row group to encode and decode again.")] = 16,
    storage_option: StorageOptions = None,
) -> Shown:
    """Read every byte, decode every value, and check footers, index and codecs. Exit status 1 if anything is wrong.

    With a chain, decode only the fields that it uses, as it declares them.
    """
    from ..pipeline.explain import bytes_text
    from ..reports.verifying import verify as verify_dataset

    pipeline = opened(url, chain, storage_option)
    found = verify_dataset(pipeline, workers=workers, round_trips=round_trips)
    lines: list[RenderableType] = [
        Text.assemble((f"{damage.check}: ", "bold red"), _place(damage), damage.what) for damage in found.damages
    ]
    lines.append(
        f"read {found.rows:,} rows in {found.row_groups:,} row groups of {found.files:,} files, "
        f"{bytes_text(found.bytes)}; {found.round_trips:,} values encoded and decoded again; "
        f"{'the index matches' if found.indexed else 'no index was compared'}"
    )
    lines += [
        Text.assemble(("not decoded: ", "bold yellow"), f"{name}: {reason}") for name, reason in found.undecoded.items()
    ]
    sound = "What was decoded is sound." if found.undecoded else "Everything is sound."
    count = len(found.damages)
    lines.append(Text(f"Problems: {count:,}", style="bold red") if count else Text(sound, style="green"))
    return Shown(found, tuple(lines), FOUND_PROBLEMS if found.damages else FINE)


def _place(damage: Damage) -> str:
    if damage.file is None or damage.file in damage.what:
        return ""
    where = "" if damage.row_group is None else f", row group {damage.row_group}"
    return f"{damage.file}{where}: "


def stats(
    url: Url,
    chain: Chain = "",
    rows: Annotated[
        int | None, typer.Option("--rows", "-n", min=1, help="Sample this many rows; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the sample.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the statistics beside the dataset and reuse them.")
    ] = False,
    storage_option: StorageOptions = None,
) -> Shown:
    """Compute statistics: mean and deviation of numbers and image channels, lengths, and frequent values."""
    from ..reports.statistics import keep as keep_statistics
    from ..reports.statistics import kept
    from ..reports.statistics import stats as count
    from ..reports.values import to_json

    pipeline, refused = opened_to_show(url, chain, storage_option)
    found = kept(pipeline) if keep and rows is None else None
    if found is not None:
        return with_refused(Shown(found, ("kept beside the dataset:", *_statistics(found))), refused)
    counted = count(pipeline, rows=rows, seed=seed)
    parts = list(_statistics(to_json(counted)))
    if keep:
        parts.append(f"written to {keep_statistics(pipeline, counted)}")
    return with_refused(Shown(counted, tuple(parts)), refused)


def _nulls(field: dict[str, Any]) -> str:
    inside = field.get("nulls_inside", 0)
    return f"{field['nulls']:,}" + (f" + {inside:,} in lists" if inside else "")


def _statistics(found: dict[str, Any]) -> Iterable[RenderableType]:
    """Formats statistics, given in their JSON form, as a table."""
    columns = table(
        *("field", "dtype", "count", "nulls", "mean", "deviation", "least", "median", "most", "lengths", "distinct"),
        "most often",
        right=("count", "nulls", "mean", "deviation", "least", "median", "most", "distinct"),
    )
    for field in found["fields"]:
        lengths, quantiles, unit = field["lengths"], field["quantiles"], field.get("unit")
        common = [f"{value} ({times:,})" for value, times in field["common"][:3] if times > 1]
        columns.add_row(
            field["name"],
            field["dtype"],
            f"{field['count']:,}",
            _nulls(field),
            _number(field["mean"], unit),
            _spread(field["deviation"], unit),
            _number(field["least"], unit),
            _number(quantiles[4] if quantiles else None, unit),
            _number(field["most"], unit),
            "" if lengths is None else f"{lengths[0]:,} ... {lengths[1]:,.1f} ... {lengths[2]:,}",
            "" if field["distinct"] is None else f"{field['distinct']:,}",
            ", ".join(common),
        )
    yield columns
    for field in found["fields"]:
        if field["channels"]:
            means, deviations = zip(*field["channels"], strict=True)
            yield f"{field['name']}: mean ({_numbers(means)}), deviation ({_numbers(deviations)}) of its channels"
            if field["dtype"] == "uint8":
                scaled = [[value / 255 for value in values] for values in (means, deviations)]
                yield f'  normalize("{field["name"]}", mean=({_numbers(scaled[0])}), std=({_numbers(scaled[1])}))'
    kind = "all" if found["exact"] else "a sample of"
    of = f" of {found['total']:,}" if found["total"] is not None and not found["exact"] else ""
    yield f"{kind} {found['rows']:,}{of} rows"


def _number(value: float | None, unit: str | None) -> str:
    from ..display.text import time_text

    if value is None or unit is None:
        return "" if value is None else f"{value:.5g}"
    return time_text(value, unit)


def _spread(value: float | None, unit: str | None) -> str:
    if value is None or unit is None:
        return _number(value, None)
    return f"{value:.5g} {unit[unit.index('[') + 1 : -1]}"


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def doctor() -> Shown:
    """Check this machine: versions, the op, shared memory, limits, caches. Exit status 1 if something is missing."""
    from ..pipeline.explain import bytes_text
    from ..reports.machine import doctor as look

    found = look()
    checks = table("check", "", "found", "what to do")
    for check in found.checks:
        checks.add_row(check.name, Text(check.level, style=_STYLES[check.level]), check.found, check.remedy)
    libraries = table("library", "version", "for")
    for name, number in found.libraries.items():
        libraries.add_row(name, number or "-", found.uses[name])
    about = {**found.versions, "processors": found.processors, "memory": bytes_text(found.memory_bytes)}
    parts = (facts(about), "", checks, "", libraries, "", _kept(found.caches))
    return Shown(found, parts, FOUND_PROBLEMS if found.problems else FINE)


def _kept(found: Iterable[CacheReport]) -> RenderableType:
    from ..pipeline.explain import bytes_text

    columns = table("kept", "files", "bytes", "directory", "what", right=("files", "bytes"))
    for each in found:
        columns.add_row(each.kind, f"{each.files:,}", bytes_text(each.bytes), each.directory, each.what)
    return columns


Directory = Annotated[
    str | None, typer.Option(metavar="DIR", help="A directory of cache(directory), instead of the default.")
]


def cache_ls(directory: Directory = None) -> Shown:
    """List the files kept between runs, and their size."""
    from ..reports.kept_files import caches

    found = caches(directory)
    return Shown(found, (_kept(found),))


def cache_clear(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND", help="Such as selections; default: all but frames and folders."),
    ] = None,
    directory: Directory = None,
) -> Shown:
    """Remove kept files that can be recreated. Frames and folders, which pipelines may still read, only if named."""
    from ..reports.kept_files import clear

    found = clear(kinds or (), directory)
    return Shown(found, ("removed:", _kept(found)))


def cache_warm(url: Url, chain: Chain = "", storage_option: StorageOptions = None) -> Shown:
    """Prepare what a job would compute first: selection, vocabularies, and the rows of a cache(directory)."""
    from ..reports.kept_files import warm

    found = warm(opened(url, chain, storage_option))
    many = "an unknown number of" if found.elements is None else f"{found.elements:,}"
    read = "" if found.cached is None else f", cached in {found.cached}"
    return Shown(found, (f"{many} elements{read}; {found.seconds:.1f} s",))
