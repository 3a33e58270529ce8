"""Commands that check the data and this machine: ``lint``, ``verify``, ``doctor``, ``cache``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from .describing import finding_lines
from .output import FINE, FOUND_PROBLEMS, Shown, StorageOptions, Url, command, facts, storage_options_of, table
from .show import Chain, opened

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
    from ...pipeline.explain import bytes_text
    from ..reports.verifying import verify as verify_dataset

    pipeline = opened(url, chain, storage_option)
    report = verify_dataset(pipeline, workers=workers, round_trips=round_trips)
    lines: list[RenderableType] = [
        Text.assemble((f"{damage.check}: ", "bold red"), _place(damage), damage.what) for damage in report.damages
    ]
    lines.append(
        f"read {report.rows:,} rows in {report.row_groups:,} row groups of {report.files:,} files, "
        f"{bytes_text(report.bytes)}; {report.round_trips:,} values encoded and decoded again; "
        f"{'the index matches' if report.indexed else 'no index was compared'}"
    )
    lines += [
        Text.assemble(("not decoded: ", "bold yellow"), f"{name}: {reason}")
        for name, reason in report.undecoded.items()
    ]
    sound = "What was decoded is sound." if report.undecoded else "Everything is sound."
    count = len(report.damages)
    lines.append(Text(f"Problems: {count:,}", style="bold red") if count else Text(sound, style="green"))
    return Shown(report, tuple(lines), FOUND_PROBLEMS if report.damages else FINE)


def _place(damage: Damage) -> str:
    if damage.file is None or damage.file in damage.what:
        return ""
    where = "" if damage.row_group is None else f", row group {damage.row_group}"
    return f"{damage.file}{where}: "


def doctor() -> Shown:
    """Check this machine: versions, the op, shared memory, limits, caches. Exit status 1 if something is missing."""
    from ...pipeline.explain import bytes_text
    from ..reports.machine import doctor as look

    report = look()
    checks = table("check", "", "found", "what to do")
    for check in report.checks:
        checks.add_row(check.name, Text(check.level, style=_STYLES[check.level]), check.found, check.remedy)
    libraries = table("library", "version", "for")
    for name, number in report.libraries.items():
        libraries.add_row(name, number or "-", report.uses[name])
    about = {**report.versions, "processors": report.processors, "memory": bytes_text(report.memory_bytes)}
    parts = (facts(about), "", checks, "", libraries, "", _kept(report.caches))
    return Shown(report, parts, FOUND_PROBLEMS if report.problems else FINE)


def _kept(reports: Iterable[CacheReport]) -> RenderableType:
    from ...pipeline.explain import bytes_text

    columns = table("kept", "files", "bytes", "directory", "what", right=("files", "bytes"))
    for each in reports:
        columns.add_row(each.kind, f"{each.files:,}", bytes_text(each.bytes), each.directory, each.what)
    return columns


Directory = Annotated[
    str | None, typer.Option(metavar="DIR", help="A directory of cache(directory), instead of the default.")
]


def cache_ls(directory: Directory = None) -> Shown:
    """List the files kept between runs, and their size."""
    from ..reports.kept_files import caches

    reports = caches(directory)
    return Shown(reports, (_kept(reports),))


def cache_clear(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND", help="Such as selections; default: all but frames and folders."),
    ] = None,
    directory: Directory = None,
) -> Shown:
    """Remove kept files that can be recreated. Frames and folders, which pipelines may still read, only if named."""
    from ..reports.kept_files import clear

    removed = clear(kinds or (), directory)
    return Shown(removed, ("removed:", _kept(removed)))


def cache_warm(url: Url, chain: Chain = "", storage_option: StorageOptions = None) -> Shown:
    """Prepare what a job would compute first: selection, vocabularies, and the rows of a cache(directory)."""
    from ..reports.kept_files import warm

    report = warm(opened(url, chain, storage_option))
    many = "an unknown number of" if report.elements is None else f"{report.elements:,}"
    read = "" if report.cached is None else f", cached in {report.cached}"
    return Shown(report, (f"{many} elements{read}; {report.seconds:.1f} s",))
