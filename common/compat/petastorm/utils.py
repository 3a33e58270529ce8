"""`decode_row` decodes one stored row; `run_in_subprocess` calls a function in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from .codecs import as_scalar
from .errors import DecodeFieldError
from .module_names import install, is_installed
from .unischema import Unischema

__all__ = ["DecodeFieldError", "decode_row", "run_in_subprocess"]
_Result = TypeVar("_Result")


def decode_row(row: Mapping[str, Any], schema: Unischema) -> dict[str, Any]:
    """Decodes the values of a stored row, such as one read by Spark. Names that are not in the schema are dropped.

    Raises:
        DecodeFieldError: a value cannot be decoded; the text names the field.
    """
    return {name: _decode_value(schema, name, value) for name, value in row.items() if name in schema.fields}


def run_in_subprocess(func: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Calls a function in a new process, which ends with the call and frees all its memory; returns the result.

    The function, its arguments and its result must be picklable. An error of the function is raised here.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=install if is_installed() else None) as executor:
        return executor.submit(func, *args, **kwargs).result()


def _decode_value(schema: Unischema, name: str, value: object) -> Any:
    field = schema.fields[name]
    if value is None:
        return None
    try:
        if field.codec is not None:
            return field.codec.decode(field, value)
        return value if field.shape else as_scalar(field.numpy_dtype, value)
    except Exception as error:
        raise DecodeFieldError(f'Decoding field "{name}" failed: {error}') from error
