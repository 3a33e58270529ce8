"""The vocabularies that ``encode`` learns: the sorted distinct values of a field in the rows selected before it.

A vocabulary is learned once and stored on disk under the dataset's version, the stages of the selection, and the field,
so that every rank, worker and restart uses the same one. If the selection cannot be stored (see
`plan.selection.store`), neither is the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.memory.arrow_views import as_arrow, from_stream, is_list, to_stream
from ...base.process.forks import pc
from ...base.progress import in_parallel
from ...parquet.nested import one_array
from ...plan.plan import BasePlan, Plan
from ...plan.program import ElementProgram, MixedProgram
from ...plan.selection.rows import RowSet
from ...plan.selection.store import kept_key
from ...schema.element import output_of
from ...schema.vocabulary import Vocabulary
from ...stages.base import Stage
from ...stages.encode import EncodeStep, encoded_as
from ...stages.steps import Step
from ...storage.file_cache import user_cache
from ..read.fetch import Fetcher, fetch_threads
from ..steps.values import code_type

_THREADS = 8
_TYPES = (pa.large_string(), pa.large_binary(), pa.int64(), pa.uint64())


def ready_program(plan: BasePlan, program: ElementProgram | MixedProgram) -> ElementProgram | MixedProgram:
    """Returns the plan's program with all vocabularies that its steps need."""
    if not isinstance(plan, Plan) or not plan.order.learning:
        return program
    assert isinstance(program, ElementProgram)
    learned = [learned_vocabulary(plan, each.field, each.selection) for each in plan.order.learning]
    return with_vocabularies(program, learned)


def with_vocabularies(
    program: ElementProgram, learned: Sequence[Vocabulary] | Mapping[int, Vocabulary]
) -> ElementProgram:
    """Returns the program with the vocabularies that its steps need, by their places among the learned ones."""

    def completed(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(
            replace(step, vocabulary=learned[step.learned].including(step.null))
            if isinstance(step, EncodeStep) and step.vocabulary is None
            else step
            for step in steps
        )

    return replace(program, row_steps=completed(program.row_steps), item_steps=completed(program.item_steps))


def vocabulary_of(plan: Plan, name: str) -> Vocabulary:
    """Returns the vocabulary of a field, which is learned if it was not given. ``name`` is its name after all stages.

    Raises:
        FieldNotFoundError, PipelineError: there is no such field, or it cannot be encoded.
    """
    stored, encode = encoded_as(plan.order.fields, name)
    given, null = (None, None) if encode is None else (encode.given, encode.null)
    if given is not None:
        return given
    (field,) = plan.resolve([stored])
    selections = (each.selection for each in plan.order.learning if each.field == field.name)
    learned = learned_vocabulary(plan, field.name, next(selections, tuple(plan.order.shared_selection)))
    return learned.including(null)


def learned_vocabulary(plan: Plan, name: str, stages: tuple[Stage, ...]) -> Vocabulary:
    """Returns the vocabulary of a stored field in all rows that the stages select, not only in those of this rank.

    Args:
        stages: the first stages of the plan's selection.

    Raises:
        PipelineError: the field does not hold texts, byte strings or integers, or is stored encoded.
    """
    if (name, stages) not in plan.vocabularies:
        key = kept_key(plan.dataset, stages, "vocabulary", json.dumps(plan.resolve([name])[0].to_json()))
        vocabulary = None if key is None else user_cache("vocabularies").load(key, read_vocabulary)
        if vocabulary is None:
            vocabulary = _learn(plan, name, plan.rows_of(stages))
            if key is not None:
                user_cache("vocabularies").save(key, _written(vocabulary))
        plan.vocabularies[name, stages] = vocabulary
    return plan.vocabularies[name, stages]


def _learn(plan: Plan, name: str, rows: RowSet) -> Vocabulary:
    (field,) = plan.resolve([name])
    output = output_of(field)
    number = output.kind == "dense" and output.dtype.kind in "iu"
    if field.storage.coded or (output.kind == "dense" and not number):
        raise PipelineError(
            f"vocabulary of '{name}': expected texts, byte strings or integers that are not stored encoded, got "
            f"{field.dtype} by {type(field.storage).__name__}."
        )
    fetcher = Fetcher(plan.dataset, [field])

    def distinct(row_group: int) -> pa.Array:
        column = fetcher.fetch(row_group, rows.of(row_group)).columns[0]
        part = as_arrow(column) if isinstance(column, np.ndarray) else column
        assert isinstance(part, pa.Array)
        while is_list(part.type):
            part = part.flatten()
        return pc.unique(part)

    row_groups = np.flatnonzero(rows.counts > 0).tolist()
    threads = fetch_threads(plan.dataset.remote, _THREADS)
    parts = in_parallel(distinct, row_groups, f"learning the values of {name}", threads)
    return Vocabulary.found_in(parts, code_type(output))


def read_vocabulary(content: bytes) -> Vocabulary:
    """Reads the vocabulary from a stored file. Raises one of `file_cache.UNREADABLE` for other bytes."""
    table = from_stream(content)
    table.validate(full=True)  # Arrow does not check offsets when it reads
    values = one_array(table.column(0))
    if values.null_count or values.type not in _TYPES:
        raise ValueError(f"expected distinct values, got {values.type} with {values.null_count} nulls")
    return Vocabulary(values)


def _written(vocabulary: Vocabulary) -> bytes:
    return bytes(to_stream(pa.table([vocabulary.values], names=["values"])))
