"""``where``: keeps the rows for which an expression, a Python function, or a condition on one column is true.

A filter reads stored values, so it runs before every stage that does not itself decide which rows exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..base.process.forks import pc
from .base import Decision, FieldNames, Stage, names_of
from .columns import ResolveFields
from .functions import UserFunction, warn_of_generators
from .names import MadeText, RowFunction, StoredExpression, StoredPattern, StoredPredicate
from .predicates.column_predicates import ColumnPredicate, contains, placed
from .predicates.expression import expression_from_json, expression_key, expression_text, expression_to_json
from .predicates.filter_tuples import as_expression

_LINE_BREAK = re.compile(r"\n *")
_MEMBER = re.compile(r"FieldRef\.Name\(([^()]*)\)")
# How Arrow shows a member of a struct.
_NESTED = re.compile(rf"FieldRef\.Nested\(({_MEMBER.pattern}(?: {_MEMBER.pattern})+)\)")


class Filter(Stage):
    """Base of the three forms of filter."""

    selects: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.ITEMS
    called: ClassVar[str] = "where"


@dataclass(frozen=True)
class Where(Filter):
    """Keeps the rows for which an Arrow expression is true; holds it serialized."""

    verb: ClassVar[str] = "where"
    serialised: StoredExpression  # the key in stored JSON
    text: MadeText = ""

    @classmethod
    def of(cls, expression: object) -> Where:
        """Creates the stage from a ``pyarrow.compute.Expression``."""
        return cls(expression_to_json(expression), expression_text(expression))

    def check(self) -> None:
        object.__setattr__(self, "text", self.text or expression_text(self.expression))

    @classmethod
    def sample(cls) -> Stage:
        return cls.of(pc.scalar(True))

    @property
    def expression(self) -> Any:
        return expression_from_json(self.serialised)

    @property
    def identity(self) -> str:
        return f"where {expression_key(self.expression)}"

    def __str__(self) -> str:
        dotted = _NESTED.sub(lambda found: ".".join(_MEMBER.findall(found[1])), self.text)
        return f"where({_LINE_BREAK.sub(' ', dotted)})"


@dataclass(frozen=True)
class WhereFunction(Filter):
    """Keeps the rows for which a Python function is true."""

    verb: ClassVar[str] = "where_function"
    repeatable: ClassVar[bool] = False  # nothing shows whether a function still does the same
    function: RowFunction
    fields: tuple[StoredPattern, ...]
    batched: bool = False

    @classmethod
    def sample(cls) -> Stage:
        return cls(UserFunction(bool), ("x",))

    @property
    def reads(self) -> tuple[str, ...]:
        return self.fields

    def check_fields(self, resolve: ResolveFields) -> None:
        resolve(self.fields)

    def __str__(self) -> str:
        return f"where({self.function!r}, fields={list(self.fields)})"


@dataclass(frozen=True)
class WhereColumn(Filter):
    """Keeps the rows for which a column predicate (``contains``, ``hash_split``) is true."""

    verb: ClassVar[str] = "where_column"
    predicate: StoredPredicate

    @classmethod
    def sample(cls) -> Stage:
        return cls(contains("x", 0))

    def after(self, stages: Sequence[Stage]) -> WhereColumn:
        before = [stage.predicate for stage in stages if isinstance(stage, WhereColumn)]
        return replace(self, predicate=placed(self.predicate, before))

    def __str__(self) -> str:
        return f"where({self.predicate})"


def filter_of(predicate: object, fields: FieldNames | None = None, *, batched: bool = False) -> Filter:
    """Creates the stage from an expression, DNF tuples, a column predicate, or a function of ``fields``."""
    if isinstance(predicate, ColumnPredicate):
        return WhereColumn(predicate)
    if callable(predicate) and not isinstance(predicate, pc.Expression):
        if not fields:
            raise PipelineError("where(function): expected fields=[...], the fields that the function reads.")
        warn_of_generators(
            "where",
            predicate,
            "Each rank and each restart would keep other rows. For a random part of the rows, write hash_split().",
        )
        return WhereFunction(UserFunction(predicate), names_of("where", fields), batched)
    if fields is not None:
        raise PipelineError("where(expression): fields= is for functions; an expression names its own fields.")
    return Where.of(as_expression(predicate))
