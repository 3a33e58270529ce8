"""`columns_of` looks at the columns of a dataset, and `roles_of` says what a model makes of each.

`columns_of` reads footers and a sample of rows. `roles_of` is a pure function of its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from ...base.errors import FieldNotFoundError, PipelineError
from ...base.process.dataclass import dataclass
from ...pipeline.pipeline import Pipeline
from ...schema.dtypes import dtype_to_json
from ...schema.field import Shape, UnischemaField, no_such_field
from ...schema.image_files import JPEG_MAGIC, PNG_MAGIC, is_image_file
from .inspecting import inspect, open_url
from .statistics import stats

_SAMPLE = 1_000
_MOST_CATEGORIES = 100
_MOST_CLASSES = 20
_LETTERS_OF_TEXT = 20
_ID = re.compile(r"(.*[^a-z0-9])?(id|uuid|guid|key|index|idx)|.*[a-z]I[dD]", re.DOTALL)

Role = Literal[
    "number", "flag", "category", "hashed", "codes", "floats", "array", "text", "time", "image", "target", "left out"
]
Task = Literal["binary", "classes", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What the schema, the footers and a sample say of one column.

    Attributes:
        dtype: as in JSON: ``"float32"``, ``"str"``, ``"decimal"``, ``"datetime64[us]"``.
        image: the name of the image codec, or ``""`` if it declares one already; ``None`` if it holds no images.
        count, distinct, letters, least, most: of the sample; ``distinct`` is ``None`` if there are many or none.
        null_share: the share of nulls; above 0 if there is one anywhere.
        odd: whether the sample has NaN or infinity.
    """

    name: str
    dtype: str
    shape: Shape
    image: str | None = None
    count: int = 0
    distinct: int | None = None
    letters: float = 0.0
    least: float | None = None
    most: float | None = None
    null_share: float = 0.0
    odd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What a model makes of the columns of a dataset.

    Attributes:
        by_name: the role of each column, in the order of the schema.
        reasons: why a column is left out, by name.
        split: the column that decides in which part a row is; ``None`` if no column can.
        task: what the target is.
    """

    columns: tuple[Column, ...]
    by_name: Mapping[str, Role]
    reasons: Mapping[str, str]
    target: str
    split: str | None
    task: Task

    def of(self, *roles: Role) -> list[Column]:
        """Returns the columns in these roles."""
        return [column for column in self.columns if self.by_name[column.name] in roles]


def opened_by(url: str) -> tuple[Pipeline, str]:
    """Opens a URL. Returns the pipeline, and what a program calls to open it: ``"Pipeline.from_delta"``."""
    pipeline = open_url(url)
    if url.startswith("hf://"):
        return pipeline, "Pipeline.from_huggingface_parquet"
    table = pipeline.dataset.table
    return pipeline, "Pipeline" if table is None else f"Pipeline.from_{table.kind}"


def columns_of(pipeline: Pipeline) -> tuple[Column, ...]:
    """Returns what a look at a dataset says of its columns. Images are not decoded."""
    report = inspect(pipeline)
    images = {field.name: _image(pipeline, field) for field in pipeline.schema}
    plain = [field.name for field in pipeline.schema if images[field.name] is None]
    counted = {each.name: each for each in stats(pipeline.select(plain), rows=_SAMPLE).fields} if plain else {}
    columns = []
    for field in pipeline.schema:
        about, nulls, dtype = counted.get(field.name), report.field(field.name).nulls, dtype_to_json(field.dtype)
        if about is None:
            columns.append(Column(name=field.name, dtype=dtype, shape=field.shape, image=images[field.name]))
            continue
        seen = about.nulls + about.nulls_inside
        share = nulls / max(report.rows, 1) if nulls and not field.shape else seen / max(about.nulls + about.count, 1)
        infinite = any(value is not None and abs(value) == float("inf") for value in (about.least, about.most))
        columns.append(
            Column(
                name=field.name,
                dtype=dtype,
                shape=field.shape,
                count=about.count,
                distinct=about.distinct,
                letters=0.0 if about.lengths is None else about.lengths[1],
                least=about.least,
                most=about.most,
                null_share=share,
                odd=about.nans > 0 or infinite,
            )
        )
    return tuple(columns)


def _image(pipeline: Pipeline, field: UnischemaField) -> str | None:
    if dtype_to_json(field.dtype) == "uint8" and len(field.shape) == 3 and field.shape[2] in (1, 3, 4):
        return ""
    if dtype_to_json(field.dtype) != "bytes" or field.shape:
        return None
    first = next((row[field.name] for row in pipeline.select(field.name).nulls("drop").head(1)), b"")
    if not is_image_file(memoryview(first)):
        return None
    return "jpeg" if first.startswith(JPEG_MAGIC) else "png" if first.startswith(PNG_MAGIC) else "webp"


def roles_of(columns: Iterable[Column], target: str, split: str | None = None) -> Roles:
    """Says what a model that predicts ``target`` makes of each column.

    Raises:
        FieldNotFoundError: there is no such target or split.
        PipelineError: the target is no number or category, rows cannot be split by this column, or no column is left.
    """
    known = {column.name: column for column in columns}
    for option, name in (("--target", target), ("--split", split)):
        if name is not None and name not in known:
            raise FieldNotFoundError(f"{option}: {no_such_field(name, known)}")
    if split is not None and not _splits(known[split]):
        raise PipelineError(
            f"--split '{split}': expected a column of text, numbers or times, got {_form(known[split])}. Rows are "
            "split by a hash of its values."
        )
    task = _task(known[target])
    by_name: dict[str, Role] = {}
    reasons: dict[str, str] = {}
    for name, column in known.items():
        role = "target" if name == target else "rows are split by it" if name == split else _role(column)
        if role == "image" and "image" in by_name.values():
            role = "the model takes one image"
        by_name[name] = role if role in Role.__args__ else "left out"  # type: ignore[assignment,attr-defined]
        if by_name[name] == "left out":
            reasons[name] = role
    if not set(by_name.values()) - {"target", "left out"}:
        left = "".join(f" {name}: {reason}." for name, reason in reasons.items())
        raise PipelineError(f"--target '{target}': expected other columns to predict it from, got none.{left}")
    return Roles(
        columns=tuple(known.values()),
        by_name=by_name,
        reasons=reasons,
        target=target,
        split=split or _best_split(known.values(), target),
        task=task,
    )


def _task(target: Column) -> Task:
    few = target.distinct is not None and target.distinct <= _MOST_CLASSES
    if not target.shape and target.count:
        if target.dtype == "bool" or (_is_number(target) and few and {target.least, target.most} <= {0.0, 1.0}):
            return "binary" if target.dtype == "bool" or target.distinct in (1, 2) else "number"
        if (_is_integer(target) and few) or (target.dtype == "str" and target.distinct is not None):
            return "classes"
        if _is_number(target):
            return "number"
    known = "all of them null" if not target.shape and not target.count else _form(target)
    raise PipelineError(f"--target '{target.name}': expected a number, a category or a bool for each row, got {known}.")


def _role(column: Column) -> str:
    """Returns the role of a column, or the reason to leave it out."""
    if column.image is not None:
        return "image"
    if not column.count:
        return "its values are null"
    integers, named_id = _is_integer(column), _ID.fullmatch(column.name) is not None
    if column.shape == (None,):
        if integers or column.dtype == "str":
            return "codes"
        return "floats" if _is_number(column) else f"lists of {column.dtype}"
    if column.shape:
        fixed = None not in column.shape and _is_number(column) and not column.null_share
        return "array" if fixed else f"{column.dtype} of shape {column.shape}"
    if column.dtype == "bool":
        return "flag"
    different = column.distinct is None or 2 * column.distinct > column.count
    unique = column.distinct is None or column.distinct == column.count
    if column.dtype == "str":
        if different and column.letters >= _LETTERS_OF_TEXT:
            return "text"
        if unique and column.count > 1:
            return "a different value in each row"
        return "category" if not different and (column.distinct or 0) <= _MOST_CATEGORIES else "hashed"
    if integers and named_id:
        return "a different value in each row" if unique and column.count > 1 else "hashed"
    if _is_number(column):
        return "number"
    if column.dtype.startswith("datetime64"):
        return "time" if not column.null_share else "a time that may be null"
    return f"values of {column.dtype}"


def _best_split(columns: Iterable[Column], target: str) -> str | None:
    """The column with the most different values, so that a split by its hash is nearly one by row."""
    able = [column for column in columns if column.name != target and _splits(column) and not column.null_share]
    most = max(able, key=lambda column: column.count if column.distinct is None else column.distinct, default=None)
    if most is not None and (most.distinct is None or 2 * most.distinct > most.count):
        return most.name
    return next((column.name for column in columns if column.image is not None), None)


def _splits(column: Column) -> bool:
    hashed = column.dtype in ("str", "bytes") or column.dtype.startswith(("datetime64", "int", "uint", "float"))
    return not column.shape and hashed and column.image is None


def _is_integer(column: Column) -> bool:
    return column.dtype.startswith(("int", "uint"))


def _is_number(column: Column) -> bool:
    return column.dtype.startswith(("int", "uint", "float")) or column.dtype == "decimal"


def _form(column: Column) -> str:
    return f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype
