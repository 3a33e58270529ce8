"""Commands that write data or a program, or serve data: ``new``, ``convert``, ``copy``, ``rewrite``, and others."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...base.errors import PipelineError
from .output import SHOWN_BEFORE, Code, Shown, StorageOptions, Url, command, pair_of, storage_options_of
from .show import Chain, opened

if TYPE_CHECKING:
    from ...schema.codec import Codec

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A directory that is empty or does not exist.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset at the target.")]
PartitionBy = Annotated[
    list[str] | None, typer.Option(metavar="FIELD", help="A field to partition by, as directories.")
]
RowGroupRows = Annotated[int | None, typer.Option(metavar="N", min=1, help="Rows per row group.")]
Compatible = Annotated[bool, typer.Option("--petastorm-compatible", help="Also write Petastorm's metadata.")]
Where = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help="Only rows that match this filter: 'field(\"speed\") > 3', or DNF as JSON."),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    command(
        app,
        "parquetry new data/clicks --target clicked --split user_id",
        "parquetry new data/photos --target label --keras --output train.py",
    )(new)
    command(
        app,
        "parquetry convert photos/ train --row-group-rows 1000",
        "parquetry convert 'shards/train-*.tar' train --rename jpg=image --rename cls=label",
    )(convert)
    command(app, "parquetry copy data/train small --where 'field(\"id\") < 1000' --field-regex id --field-regex image")(
        copy
    )
    command(
        app,
        "parquetry rewrite data/raw data/train --sort-by stamp --row-group-rows 1000",
        "parquetry rewrite data/raw data/train --codec image=jpeg:90",
    )(rewrite)
    command(app, "parquetry index data/train")(index)
    command(app, "parquetry migrate data/petastorm --dry-run")(migrate)
    command(app, "parquetry migrate-code train.py --dry-run", "parquetry migrate-code src/")(migrate_code)
    command(app, "parquetry generate-metadata data/plain")(generate_metadata)
    command(
        app,
        "parquetry serve data/train 'shuffle(1000, seed=7).batch(64)' --listen tcp://127.0.0.1:8815",
        "parquetry serve pipeline.json",
    )(serve)


def new(
    url: Url,
    target: Annotated[str, typer.Option(metavar="FIELD", help="The field to predict.")],
    split: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Rows with the same value stay in one part, such as those of a user."),
    ] = None,
    torch: Annotated[
        bool, typer.Option("--torch", help="Write it for PyTorch: the default where it is there.")
    ] = False,
    keras: Annotated[bool, typer.Option("--keras", help="Write it for Keras and TensorFlow.")] = False,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write it to a new file instead of printing it.")
    ] = None,
) -> Shown:
    """Print a program that trains a small model on a dataset: nulls, encodings, a split, batches, and resuming."""
    if torch and keras:
        raise PipelineError("expected --torch or --keras, got both.")
    from ..reports.program import program
    from ..reports.roles import columns_of, opened_by, roles_of

    pipeline, opener = opened_by(url)
    roles = roles_of(columns_of(pipeline), target, split)
    uses_torch = torch or (not keras and find_spec("torch") is not None)
    text = program(url, roles, "torch" if uses_torch else "keras", opener=opener)
    value = {"program": text, "roles": dict(roles.by_name), "split": roles.split}
    if output is None:
        return Shown(value, (Code(text.rstrip("\n")),))
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PipelineError(f"--output {output}: expected a new file, got one that exists. Name another.") from None
    return Shown({**value, "output": output}, (f"written to {output}",))


def convert(
    source: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="A folder, a file, or several; may contain * and ?.")
    ],
    target: Target,
    form: Annotated[str | None, typer.Option(help="parquet, huggingface, images, tfrecord or webdataset.")] = None,
    fields: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="A field to convert; default: all.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a feature; for TFRecord and WebDataset.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split of a Hugging Face folder.")] = None,
    config: Annotated[str | None, typer.Option(help="The configuration of a Hugging Face folder.")] = None,
    partition_by: PartitionBy = None,
    row_group_rows: RowGroupRows = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many parts to write in parallel.")] = None,
    overwrite: Overwrite = False,
    petastorm_compatible: Compatible = False,
    no_progress: NoProgress = False,
) -> Shown:
    """Write image folders, TFRecords, WebDataset tars, Hugging Face folders or Parquet as a dataset."""
    from ..tools import convert as convert_files

    known: Any = form  # `convert_files` validates it
    report = convert_files(
        source if len(source) > 1 else source[0],
        target,
        fields,
        form=known,
        rename=dict(pair_of(text, "--rename") for text in rename or ()),
        split=split,
        config=config,
        partition_by=partition_by,
        row_group_rows=row_group_rows,
        petastorm_compatible=petastorm_compatible,
        overwrite=overwrite,
        workers=workers,
        progress=_shows_bars(no_progress),
    )
    return _copied(target, report)


def copy(
    source: Url,
    target: Target,
    field_regex: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Fields to copy; default: all.")
    ] = None,
    not_null_fields: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Only rows where this field is not null.")
    ] = None,
    where: Where = None,
    partition_by: PartitionBy = None,
    row_group_rows: RowGroupRows = None,
    files: Annotated[int, typer.Option(min=1, help="Files per stripe.")] = 1,
    overwrite: Overwrite = False,
    petastorm_compatible: Compatible = False,
    no_progress: NoProgress = False,
) -> Shown:
    """Copy some fields and rows of a dataset. After an interruption, run it again to resume."""
    from ..tools import copy as copy_dataset

    report = copy_dataset(
        source,
        target,
        field_regex=field_regex,
        not_null_fields=not_null_fields or (),
        where=_condition(where),
        partition_by=partition_by,
        row_group_rows=row_group_rows,
        files=files,
        overwrite=overwrite,
        petastorm_compatible=petastorm_compatible,
        progress=_shows_bars(no_progress),
    )
    return _copied(target, report)


def rewrite(
    source: Url,
    target: Target,
    fields: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="A field to write; default: all.")] = None,
    where: Where = None,
    sort_by: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Sort by this field; -FIELD for descending order.")
    ] = None,
    codec: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=CODEC", help="jpeg:90, png, webp:80, ndarray, npz or tensor.")
    ] = None,
    row_group_rows: RowGroupRows = None,
    row_group_bytes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Bytes per row group.")] = None,
    files: Annotated[int, typer.Option(min=1, help="The number of files.")] = 1,
    partition_by: PartitionBy = None,
    compression: Annotated[str, typer.Option(help="auto, zstd, snappy, lz4, gzip, brotli or none.")] = "auto",
    no_progress: NoProgress = False,
    storage_option: StorageOptions = None,
) -> Shown:
    """Rewrite a dataset: sorted, in row groups of equal size, with codecs and compression that suit training."""
    from ..tools import rewrite as rewrite_dataset

    report = rewrite_dataset(
        source,
        target,
        fields,
        where=_condition(where),
        sort_by=sort_by or (),
        codecs=dict(_codec(*pair_of(text, "--codec")) for text in codec or ()),
        row_group_rows=row_group_rows,
        row_group_bytes=row_group_bytes,
        files=files,
        partition_by=partition_by,
        compression=compression,
        progress=_shows_bars(no_progress),
        source_options=storage_options_of(storage_option),
        target_options=storage_options_of(storage_option) if "://" in target else None,
    )
    return _copied(target, report)


def index(
    url: Url,
    columns: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="A field to index; default: all.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Write the row-group index of a dataset, so that planning reads one file instead of all footers."""
    from ...dataset.index import write_index

    path = write_index(url, columns=columns, storage_options=storage_options_of(storage_option))
    return Shown({"index": path}, (f"written to {path}",))


def migrate(
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would change.")] = False,
    keep_petastorm: Annotated[bool, typer.Option("--keep-petastorm", help="Keep Petastorm's keys.")] = False,
) -> Shown:
    """Turn Petastorm's pickled metadata into JSON, in place."""
    from ..tools import migrate as migrate_dataset

    report = migrate_dataset(url, dry_run, keep_petastorm=keep_petastorm)
    text = f"dry run, nothing was written. {report}" if dry_run else str(report)
    value = {"path": report.path, "changed": report.changed and not dry_run, "removed": report.removed}
    return Shown({**value, "schema": report.schema.to_json()}, (text,))


def migrate_code(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Python files, or directories of them.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
) -> Shown:
    """Change programs from Petastorm to parquetry.petastorm, and list what is left to do."""
    from ..tools import migrate_code as migrate_files

    changes = migrate_files(files, dry_run)
    changed = [change.path for change in changes if change.diff]
    left = [f"{change.path}, line {line}: {text}." for change in changes for line, text in change.left]
    value = {"changed": changed, "left": left, "diff": "".join(change.diff for change in changes)}
    count = f"{len(changed)} {'file' if len(changed) == 1 else 'files'}"
    summary = f"dry run, nothing was written. {count} would change." if dry_run else f"{count} changed."
    parts = [change.diff.rstrip() for change in changes if change.diff]
    return Shown(value, (*parts, summary, *(("Left as it is:", *left) if left else ())))


def generate_metadata(
    url: Url,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing schema.")] = False,
) -> Shown:
    """Write the schema of plain Parquet files."""
    from ...base.urls import url_without_secrets
    from ..tools import generate_metadata as write_schema

    schema = write_schema(url, overwrite=overwrite)
    return Shown(
        schema.to_json(), (f"{url_without_secrets(url)}: schema of {len(schema)} fields: {', '.join(schema.fields)}.",)
    )


def serve(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="URL", help="A dataset, or a JSON file from Pipeline.to_json().")],
    chain: Chain = "",
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="unix:PATH or tcp://127.0.0.1:PORT; default: a new socket.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file whose first line clients must present.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="A limit on client requests, such as idle_s=600; see docs/arrow-stream.md."
        ),
    ] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Serve a pipeline's batches as Arrow streams, until SIGTERM or Ctrl-C."""
    from ...server.server_process import serve_until_stopped

    is_file = not chain and (source == "-" or source.endswith(".json"))
    pipeline = source if is_file else opened(source, chain, storage_option)
    announce = _announce_as_json if context.params.get("as_json") else print
    serve_until_stopped(pipeline, listen, announce=announce, limits=limit or (), token_file=token_file)
    return SHOWN_BEFORE


def _announce_as_json(text: str) -> None:
    print(json.dumps({"address": text.removeprefix("serving at ")}))


def _shows_bars(no_progress: bool) -> bool:
    return not no_progress and sys.stderr.isatty()


def _copied(target: str, report: Any) -> Shown:
    from ...base.urls import url_without_secrets

    place = url_without_secrets(target)
    value = {
        "target": place,
        "rows": report.rows,
        "files": report.files,
        "fields": list(report.schema.fields),
        "resumed_stripes": report.resumed_stripes,
    }
    return Shown(value, (f"{place}: {report}",))


def _condition(text: str | None) -> Any:
    from ..reports.chain import parse_condition

    return None if text is None else parse_condition(text)


def _codec(name: str, text: str) -> tuple[str, Codec]:
    from ..reports.chain import parse_codec

    return name, parse_codec(text)
