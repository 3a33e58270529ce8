"""Makes token ids of texts with a user's tokenizer, and checks what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ...base.errors import NullValueError, TransformError
from ...base.process.exit_watch import serves_a_trainer
from ...stages.functions import lock_of
from ...stages.tokenize import Tokenizer, TokenizeStep
from ..columns.batch import Column, Ragged, Strings, rows_of, without_valid
from ..columns.protocols import Describe
from .transform import call_with

_Ids = Sequence[Any] | np.ndarray
_TEXTS_AT_ONCE = 1 << 10
_THREADS = 8  # as tiktoken's own default


def apply_tokenize(step: TokenizeStep, columns: Sequence[Column], describe: Describe) -> list[Column]:
    """Returns the columns, followed by the ids of the texts.

    Raises:
        NullValueError: a text is null, and nulls are errors.
        TransformError: the tokenizer raised an error, or returned something else than integers that the dtype holds.
    """
    texts = columns[step.number]
    assert isinstance(texts, Strings)
    if texts.valid is not None and step.nulls == "error":
        row = int(np.argmin(texts.valid))
        raise NullValueError(
            f"field '{step.field.name}', {describe(row)}: expected a text to tokenize, found null. Leave such rows out "
            f"with nulls('drop', '{step.field.name}'), or choose tokenize(nulls='empty')."
        )
    ids = _ids(step, rows_of(without_valid(texts), text=True), texts.valid, describe)
    lengths = np.array([len(each) for each in ids], np.int64)
    values = _joined(step, ids, lengths, describe)
    return [*columns, Ragged(lengths[:, None], values, (len(ids),))]


def _ids(step: TokenizeStep, texts: Sequence[str], valid: np.ndarray | None, describe: Describe) -> list[_Ids]:
    """Returns the ids of each text, as its tokenizer returns them."""
    places = list(range(len(texts))) if valid is None else np.flatnonzero(valid).tolist()
    result: list[_Ids] = [()] * len(texts)
    for first in range(0, len(places), _TEXTS_AT_ONCE):
        some = places[first : first + _TEXTS_AT_ONCE]
        for place, ids in zip(some, _tokenized(step, [texts[n] for n in some], some, describe), strict=True):
            result[place] = ids
    return result


def _tokenized(step: TokenizeStep, texts: list[str], places: Sequence[int], describe: Describe) -> list[_Ids]:
    """Calls the tokenizer: a function for each text, a library for all of them."""
    tokenizer: Any = step.function.function
    assert isinstance(tokenizer, Tokenizer)
    called, threads = f"tokenize {step.function.name}", _threads()
    at_once = 1 if tokenizer.kind == "function" else len(texts)
    made: list[_Ids] = []

    def where() -> str:
        here = describe(places[len(made)])
        return here if at_once == 1 else f"texts from {here} on"

    with lock_of(tokenizer.tokenizer):
        for first in range(0, len(texts), at_once):
            ids = call_with(partial(tokenizer, threads=threads), texts[first : first + at_once], called, where)
            for each in ids:
                made.append(each if isinstance(each, list | tuple) else _as_array(each, called, where))
    return made


def _as_array(ids: object, called: str, where: Callable[[], str]) -> np.ndarray:
    """Returns what a tokenizer made, as an array of its own: the tokenizer may use its memory again."""
    array = np.array(ids)
    if array.ndim != 1:
        raise TransformError(
            f"{called}, {where()}: expected a list or an array of ids, got {type(ids).__name__}. Return the ids alone, "
            "such as encoding.ids."
        )
    return array


def _threads() -> int:
    """How many threads a tokenizer may use: one in a decode worker, of which there is one for each processor."""
    if not serves_a_trainer():
        return _THREADS
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return 1


def _joined(step: TokenizeStep, ids: Sequence[_Ids], lengths: np.ndarray, describe: Describe) -> np.ndarray:
    """Returns the ids of all rows, end to end, in the declared dtype."""
    total, dtype = int(lengths.sum()), step.output.dtype
    if not total:
        return np.zeros(0, dtype)
    try:
        if not any(isinstance(each, np.ndarray) for each in ids):
            values = np.array(list(chain.from_iterable(ids)))
        else:
            values = np.concatenate([np.asarray(each) for each in ids if len(each)])
    except ValueError:  # lists of lists
        return _refuse(step, ids, describe)
    info = np.iinfo(dtype)
    if values.shape == (total,) and values.dtype.kind in "iu" and values.min() >= info.min and values.max() <= info.max:
        return values.astype(dtype)
    return _refuse(step, ids, describe)


def _refuse(step: TokenizeStep, ids: Sequence[_Ids], describe: Describe) -> np.ndarray:
    """Raises `TransformError` for the first row whose ids are wrong."""
    info = np.iinfo(step.output.dtype)
    for row, each in enumerate(ids):
        if not len(each):
            continue
        array = np.array([*each], None if all(np.ndim(item) == 0 for item in each) else object)
        where = f"tokenize {step.function.name}, field '{step.output.name}', {describe(row)}"
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TransformError(
                f"{where}: expected a list or an array of integers, got {array.dtype} of shape {array.shape}."
            )
        wrong = array[(array < info.min) | (array > info.max)]
        if len(wrong):
            raise TransformError(
                f"{where}: expected ids that {step.output.dtype} can hold, got {wrong[0]}. Give a larger dtype=."
            )
    raise TransformError(f"tokenize {step.function.name}: expected integers, got values of different kinds.")
