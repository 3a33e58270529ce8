"""Step fusion: which first steps of a program stored columns go straight through, on their way into the batch.

In: columns as they are stored, and steps. Out: columns that have taken steps in, and the steps that are left. Always
holds: the result is the same as with all steps applied one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..stages.image_base import ImageStep
from ..stages.pack import PackStep
from ..stages.select import Projection
from ..stages.steps import Step
from .program import Input


def fused(inputs: Sequence[Input], steps: Sequence[Step]) -> tuple[list[Input], list[Step]]:
    """``inputs`` after the steps that they could take in, and the other steps."""
    columns = list(inputs)
    left: list[Step] = []
    touched: set[int] = set()
    for place, step in enumerate(steps):
        if isinstance(step, ImageStep) and step.number not in touched and columns[step.number].step is None:
            columns[step.number] = replace(columns[step.number], step=step)
        elif isinstance(step, PackStep) and not left and all(columns[number].step is None for number in step.numbers):
            leaves = tuple(leaf for number in step.numbers for leaf in columns[number].leaves)
            columns = [*(columns[number] for number in step.keep), Input(leaves=leaves, step=step)]
        elif isinstance(step, Projection) and not left:
            columns = [columns[number] for number in step.keep]
        elif step.changes_one_column:
            left.append(step)
            touched.add(step.number)  # type: ignore[attr-defined]  # these have one
        else:
            return columns, [*left, *steps[place:]]
    return columns, left
