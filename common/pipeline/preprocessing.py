"""`Preprocessing`: what the verbs of a pipeline do to the values of a row, for rows that come from elsewhere.

A served model must see the numbers that it was trained on. So a row takes the way of a stored one in memory: it is
encoded as the writer does, and the engine makes its element with the same steps. No framework is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import EncodeError, PipelineError
from ..base.memory.arena import Heap
from ..base.process.dataclass import dataclass
from ..base.process.forks import cached_property, load_compute
from ..engine.read.canonical import to_canonical
from ..engine.read.file_cells import RowGroupColumns
from ..engine.run.assemble import assemble
from ..engine.run.block import BlockParts, block_by_row
from ..engine.run.vocabularies import learned_vocabulary, with_vocabularies
from ..engine.steps.source import BlockSlice
from ..engine.steps.values import code_type
from ..plan.fields import build_program
from ..plan.plan import Plan
from ..plan.program import ElementProgram
from ..schema.codecs import ReadListCodec
from ..schema.element import Element
from ..schema.encoding import encode_columns
from ..schema.field import Unischema, UnischemaField, match_names
from ..schema.vocabulary import Vocabulary
from ..stages.base import Decision, FieldNames, Stage, required_names, stage_from_json
from ..stages.columns import Columns
from ..stages.encode import EncodeStep
from ..stages.select import Select
from .pipeline_iterator import batch_to_numpy, rows_to_numpy
from .step_iterator import Iterated

_VERSION = 1
_NOT_OF_ROWS = (Decision.WINDOWS, Decision.JOINS)


@dataclass(frozen=True)
class Preprocessing:
    """The work of a pipeline's verbs on the values of single rows. `Pipeline.preprocessing` makes one.

    Attributes:
        fields: the stored fields.
        stages: the verbs that work on values.
        vocabularies: the values that each `encode` without a vocabulary has learned.
    """

    fields: tuple[UnischemaField, ...]
    stages: tuple[Stage, ...]
    vocabularies: tuple[tuple[Any, ...], ...] = ()

    @classmethod
    def of(cls, pipeline: Iterated, names: Sequence[FieldNames]) -> Preprocessing:
        """As `Pipeline.preprocessing`."""
        plan = pipeline.plan()
        if not isinstance(plan, Plan):
            raise PipelineError("preprocessing: expected a pipeline over one dataset, got a mix or a served one.")
        spanning = next((stage for stage in pipeline.stages if stage.decides in _NOT_OF_ROWS), None)
        if spanning is not None:
            raise PipelineError(
                f"preprocessing: expected verbs on single rows, got {spanning.called}(). Leave it out, and form its "
                "items from what apply() returns."
            )
        stages = [stage for stage in pipeline.stages if stage.decides is Decision.FIELDS]
        if names:
            stages.append(Select.of(required_names("preprocessing", names)))
        columns = Columns(resolve=plan.resolve)
        for stage in stages:
            stage.apply(columns)
        read = plan.resolve([field.name for field in columns.open()])
        learned = (learned_vocabulary(plan, each.field, each.selection) for each in plan.order.learning)
        made = cls(tuple(read), tuple(stages), tuple(tuple(each.values.to_pylist()) for each in learned))
        made._check()
        return made

    def _check(self) -> None:
        program = self._program
        if program.drops or program.draws_numbers:
            what = "leaves rows out" if program.drops else "draws random numbers"
            raise PipelineError(
                f"preprocessing: expected verbs that give each row one value, got one that {what}. Leave it out of the "
                "pipeline that serves."
            )

    @cached_property
    def _program(self) -> ElementProgram:
        program = build_program(self.stages, self._resolve, lean=True)
        learned = {step.learned: step for step in program.item_steps if isinstance(step, EncodeStep)}
        types = {place: code_type(step.field) for place, step in learned.items() if step.vocabulary is None}
        made = {place: Vocabulary(pa.array(self.vocabularies[place], kind)) for place, kind in types.items()}
        return with_vocabularies(program, made)

    def _resolve(self, patterns: Sequence[str] | None) -> list[UnischemaField]:
        by_name = {field.name: field for field in self.fields}
        if patterns is None:
            return list(self.fields)
        names = {name for pattern in patterns for name in match_names(pattern, by_name)}
        return [field for field in self.fields if field.name in names]

    @property
    def inputs(self) -> tuple[UnischemaField, ...]:
        """The fields that a row must have."""
        by_name = {field.name: field for field in self.fields}
        return tuple(by_name[field.name] for field in self._program.fields)

    @property
    def element(self) -> Element:
        """The fields, dtypes and shapes that `apply` returns for a row."""
        return Element(outputs=self._program.outputs)

    def apply(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]] | pa.Table, *, batched: bool = False) -> Any:
        """Returns what the pipeline would give for these values, to the bit, as numpy.

            >>> serving = drive.standardize("id", mean=1, std=2).preprocessing("id")
            >>> serving.apply({"id": 4, "name": "not read"})
            {'id': np.float32(1.5)}
            >>> serving.apply([{"id": 4}, {"id": 5}])["id"].tolist()
            [1.5, 2.0]

        Args:
            rows: one row as a dict, with Python or numpy values as `write_dataset` takes them; a list of rows; an Arrow
                table; or, with ``batched``, a dict of columns. A row needs the fields in `inputs`, with ``None`` for
                nulls. Others are not read.
            batched: whether a dict holds columns.

        Returns:
            A row for a row, and otherwise a batch: a dict of arrays.

        Raises:
            EncodeError: a field is missing, or a value does not fit; the message names row and field.
            DecodeError, NullValueError, TransformError: a verb refuses a value.
        """
        if isinstance(rows, pa.Table | pa.RecordBatch):
            columns: Mapping[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
            count = len(rows)
        elif isinstance(rows, Mapping):
            self._check_names(rows)
            columns = rows if batched else {name: [value] for name, value in rows.items()}
            count = self._length_of(rows) if batched else 1
        else:
            for row in rows:
                self._check_names(row)
            columns = {field.name: [row[field.name] for row in rows] for field in self.inputs}
            count = len(rows)
        self._check_names(columns)
        made = self._made(columns, count)
        if isinstance(rows, Mapping) and not batched:
            return next(iter(rows_to_numpy(self.element, made)))
        return batch_to_numpy(replace(self.element, batch_size=count), made)

    def _length_of(self, columns: Mapping[str, Any]) -> int:
        lengths = {field.name: _rows_in(columns[field.name]) for field in self.inputs}
        (count, *others) = {*lengths.values()} or {0}
        if others or count is None:
            shown = ", ".join(f"'{name}': {'one value' if n is None else n}" for name, n in lengths.items())
            raise EncodeError(
                f"preprocessing: expected columns of one length, got {shown}. Leave batched=True out for a single row."
            )
        return count

    def _check_names(self, row: object) -> None:
        if not isinstance(row, Mapping):
            raise EncodeError(f"preprocessing: expected a dict of field names to values, got {row!r:.80}.")
        missing = [field.name for field in self.inputs if field.name not in row]
        if missing:
            raise EncodeError(
                f"preprocessing: expected the fields {[field.name for field in self.inputs]}, got none of the name "
                f"'{missing[0]}'. Pass None for a null, and batched=True with a dict of columns."
            )

    def _made(self, columns: Mapping[str, Any], count: int) -> list[Any]:
        """Makes the columns of a batch as if the values were a row group."""
        load_compute()
        program = self._program
        stored = _encoded(self.inputs, program.fields, columns)
        rows = range(count)
        parts = BlockParts(
            [RowGroupColumns(stored)], ["the rows passed to apply()"], [rows], program.fields, row_groups=[0]
        )
        source = BlockSlice(block=block_by_row(parts), item_rows=np.arange(count)[:, None], places=None)
        return assemble(program, [source], count, Heap())

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object with everything; functions of `transform` as cloudpickle.

        Raises:
            PipelineError: a function cannot be pickled.
        """
        return {
            "version": _VERSION,
            "fields": [field.to_json() for field in self.fields],
            "stages": [stage.to_json() for stage in self.stages],
            "vocabularies": list(map(_values_to_json, self.vocabularies)),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_json`: the result is equal. Functions in it run, so load it from whom you trust only.

        Raises:
            PipelineError: the value is something else, or comes from a later release.
        """
        if not isinstance(value, Mapping) or value.get("version") != _VERSION:
            raise PipelineError(
                f"preprocessing: expected what to_json() returned, version {_VERSION}, got {value!r:.80}. Update "
                "parquetry if a later release wrote it."
            )
        made = cls(
            tuple(UnischemaField.from_json(field) for field in value["fields"]),
            tuple(stage_from_json(stage) for stage in value["stages"]),
            tuple(map(_values_from_json, value["vocabularies"])),
        )
        made._check()
        return made


def _rows_in(column: object) -> int | None:
    """Returns the length of a column; ``None`` if it is a single value."""
    if isinstance(column, str | bytes):
        return None
    try:
        return len(column)  # type: ignore[arg-type]  # that is what is tried
    except TypeError:
        return None


def _encoded(
    fields: Sequence[UnischemaField], read: Sequence[UnischemaField], columns: Mapping[str, Any]
) -> tuple[pa.Array, ...]:
    """Returns the columns as they would come from a file. The lists of some may have nulls inside."""
    made = []
    for field, as_read in zip(fields, read, strict=True):
        values = columns[field.name]
        if isinstance(as_read.storage, ReadListCodec) and as_read.storage.nulls != "error":
            try:
                array = pa.array(values, field.storage.arrow_type(field))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise EncodeError(f"field '{field.name}': expected lists of {field.dtype}: {error}") from error
        else:
            array = encode_columns(Unischema("rows", [field]), {field.name: values})[field.name]
        made.append(to_canonical(as_read, array))
    return tuple(made)


def _values_to_json(values: tuple[Any, ...]) -> Any:
    if values and isinstance(values[0], bytes):
        return {"latin-1": [value.decode("latin-1") for value in values]}
    return list(values)


def _values_from_json(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping):
        return tuple(text.encode("latin-1") for text in value["latin-1"])
    return tuple(value)
