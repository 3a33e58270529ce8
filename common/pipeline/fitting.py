"""`fit` learns the statistics of some fields in one pass over the rows of a pipeline.

The pass reads the fields as the pipeline delivers them, in natural order and in batches of its own. So neither ranks
nor shuffles nor batch sizes change the result. It is kept on disk like a selection, and computed again if the dataset,
the pipeline or the arguments change. What a function makes is not kept, because nothing shows whether the function
still does the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..base.errors import PipelineError
from ..base.process.forks import load_compute
from ..base.progress import progress, thread_pool
from ..engine.columns.batch import Column, by_output
from ..engine.run.summaries import CategorySummary, NumberSummary, Summary
from ..plan.plan import Plan
from ..plan.selection.store import kept_key
from ..schema.element import OutputField
from ..schema.field import match_names
from ..schema.plain import integer
from ..schema.training_statistics import TrainingStatistics
from ..stages.base import Decision, FieldNames, Stage, names_of
from ..stages.batch import Batch
from ..stages.select import Select
from ..storage.file_cache import user_cache
from .step_iterator import Iterated, StepIterator

_VERSION = 1
_BATCH_BYTES = 8 << 20
_LEFT_OUT = (Decision.ORDER, Decision.PART, Decision.ROW_GROUPS, Decision.FORM)
_REFUSED = {
    Decision.WINDOWS: "which would count rows several times",
    Decision.JOINS: "which joins rows",
    Decision.WEIGHTS: "which draws other rows in each epoch",
    Decision.PASSES: "which would count rows several times",
    Decision.BATCHES: "which makes batches of rows",
}


def fit(
    pipeline: Iterated,
    names: Sequence[FieldNames],
    categories: FieldNames,
    *,
    quantiles: int,
    min_count: int,
    max_size: int | None,
) -> TrainingStatistics:
    """Returns the statistics of fields over the rows of a pipeline over one dataset; see `Pipeline.fit`."""
    options: dict[str, Any] = {
        name: integer(value, least=1)
        for name, value in (("quantiles", quantiles), ("min_count", min_count), ("max_size", max_size))
        if value is not None
    }
    for name, value in options.items():
        if value is None:
            raise PipelineError(f"fit: expected {name} to be an integer >= 1.")
    rows = pipeline.with_stages(_of_all_ranks(pipeline.stages))
    plan = rows.plan()
    if not isinstance(plan, Plan):
        raise PipelineError("fit: expected a pipeline over one dataset, got a mix or a served one.")
    known = {str(output.path[-1]): output for output in plan.element.outputs}
    chosen = {name: False for pattern in names_of("fit", names) for name in match_names(pattern, known)}
    chosen |= {name: True for pattern in names_of("fit", categories) for name in match_names(pattern, known)}
    if not chosen:
        raise PipelineError("fit: expected the names of fields, got none. Name numbers and texts, or categories=[...].")
    about = json.dumps([_VERSION, [stage.to_json() for stage in rows.stages], chosen, options])
    frames = not all(field.storage.in_column for field in plan.program.fields)  # whose videos may change
    changing = plan.program.has_user_code or plan.program.draws_numbers or frames
    key = None if changing or pipeline.options.skips else kept_key(plan.dataset, plan.order.selection, "fit", about)
    kept = None if key is None else user_cache("statistics").load(key, _read)
    if kept is not None:
        return kept
    summaries = {name: _summary_of(known[name], category=category, **options) for name, category in chosen.items()}
    count = _add_rows(rows, summaries)
    fields = tuple((name, summary.result()) for name, summary in summaries.items())
    chain = tuple(map(str, rows.stages))
    result = TrainingStatistics(rows=count, dataset=plan.dataset.version, chain=chain, fields=fields)
    if key is not None:
        user_cache("statistics").save(key, json.dumps(result.to_json()).encode())
    return result


def _summary_of(
    output: OutputField, *, category: bool, quantiles: int = 100, min_count: int = 1, max_size: int | None = None
) -> Summary:
    """Texts and byte strings are categories; of numbers, only those that the user says."""
    if category or output.kind != "dense":
        return CategorySummary(output, min_count, max_size)
    return NumberSummary(output, quantiles)


def _of_all_ranks(stages: Iterable[Stage]) -> list[Stage]:
    """The stages that decide which rows there are and what they hold.

    Raises:
        PipelineError: the rows differ between ranks or epochs, or are no single rows.
    """
    kept: list[Stage] = []
    ordered: Stage | None = None
    for stage in stages:
        if stage.decides in _REFUSED:
            raise PipelineError(
                f"fit: expected rows, got {stage.called}(), {_REFUSED[stage.decides]}. Call fit() before it."
            )
        if stage.decides in _LEFT_OUT:
            ordered = stage if stage.decides is not Decision.FORM else ordered
        elif stage.decides is Decision.CUT and ordered is not None:
            raise PipelineError(
                f"fit: expected the same rows in every epoch and rank, got {stage.called}() after {ordered.called}(). "
                "Call fit() before both."
            )
        else:
            kept.append(stage)
    return kept


def _add_rows(rows: Iterated, summaries: dict[str, Summary]) -> int:
    """Adds all rows to the summaries, and returns how many there were. Each batch is added to all fields at once."""
    chosen = rows.with_stages([*rows.stages, Select.of(list(summaries))])
    outputs = chosen.plan().element.outputs
    row_bytes = sum(max(output.dtype.itemsize * _values_in(output), 1) for output in outputs)
    size = min(max(_BATCH_BYTES // row_bytes, 1), 1 << 14)
    batches = chosen.with_stages([*chosen.stages, Batch(size)])
    plan = batches.plan()
    steps = StepIterator(batches, 0, strict_nulls=False)
    total = 0 if plan.program.drops else plan.length or 0
    count = 0
    load_compute()
    threads = min(rows.options.parallelism, len(summaries))
    with thread_pool(threads, "parquetry-fit") as pool:

        def add(named: tuple[OutputField, Column]) -> None:
            output, column = named
            summaries[str(output.path[-1])].add(column)

        try:
            for number, columns in progress(steps, "fitting", total, unit="batch"):
                count += number
                for _ in pool.map(add, list(by_output(batches.element, columns))):
                    pass
        finally:
            steps.close()
    return count


def _values_in(output: OutputField) -> int:
    count = 1
    for axis in output.element_shape:
        count *= 256 if axis is None else axis
    return count


def _read(content: bytes) -> TrainingStatistics:
    return TrainingStatistics.from_json(json.loads(content))
