"""`TransformSpec`: a user function that changes rows as they are read, and how it changes the schema."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ...base.errors import PipelineError
from .unischema import Unischema, UnischemaField


def edit_field(
    name: str, numpy_dtype: object, shape: tuple[int | None, ...], nullable: bool = False
) -> tuple[Any, ...]:
    """Describes a field that a transform adds or changes, in the form that `TransformSpec` takes."""
    return name, numpy_dtype, shape, nullable


class TransformSpec:
    """Transforms each row (`make_reader`), or each row group as a ``DataFrame`` (`make_batch_reader`).

    Args:
        func: row dict -> row dict, or ``DataFrame`` -> ``DataFrame``; ``None`` changes no values.
        edit_fields: fields that the function adds or changes, as `edit_field` tuples or `UnischemaField` values. Of
            longer tuples, only the first four items are used, as in Petastorm. The returned values must have the dtype
            and shape declared here.
        removed_fields: names of the fields to remove.
        selected_fields: names of the fields to keep, in order; cannot be combined with ``removed_fields``.
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[UnischemaField | tuple[Any, ...]] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields and selected_fields:
            raise PipelineError("TransformSpec: expected removed_fields or selected_fields, got both.")
        self.func = func
        self.edit_fields = [_as_field(field) for field in edit_fields or ()]
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """Returns the schema of the transformed rows: edited fields come last, unless ``selected_fields`` orders them."""
    removed = set(transform_spec.removed_fields)
    unknown = sorted(removed - set(schema.fields))
    if unknown:
        warnings.warn(
            f"TransformSpec: removed_fields {unknown} are not part of the schema: {', '.join(unknown)}.",
            UserWarning,
            stacklevel=2,
        )
    edited = {field.name for field in transform_spec.edit_fields}
    fields = [field for name, field in schema.fields.items() if name not in removed | edited]
    fields += transform_spec.edit_fields
    if transform_spec.selected_fields is not None:
        by_name = {field.name: field for field in fields}
        missing = [name for name in transform_spec.selected_fields if name not in by_name]
        if missing:
            warnings.warn(
                f"TransformSpec: selected_fields are not part of the schema: {', '.join(missing)}.",
                UserWarning,
                stacklevel=2,
            )
        fields = [by_name[name] for name in transform_spec.selected_fields if name in by_name]
    return Unischema(f"{schema._name}_transformed", fields)


def _as_field(item: UnischemaField | tuple[Any, ...]) -> UnischemaField:
    if isinstance(item, UnischemaField):
        return item
    try:
        name, dtype, shape, nullable = item[:4]
        field = UnischemaField(name, dtype, tuple(shape), None, bool(nullable))
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"TransformSpec: expected edit_fields of (name, dtype, shape, nullable), got {item!r}."
        ) from error
    return field
