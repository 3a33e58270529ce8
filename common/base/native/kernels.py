"""The table of kernels: the compiled function of each, and the one that does its work without the compiled core.

Which of the two a process uses is decided here, once, at import. So other rooms import kernels from this module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from . import dlpack, jpeg, parquet, pixels, values
from . import gather as rows
from .library import is_compiled

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Kernel(NamedTuple):
    """Two functions of the same arguments.

    Attributes:
        compiled: the one of the compiled core.
        other: the one of numpy, Arrow or Python, with the same results; if there is none, a function that leaves all
            its work to the caller, as ``compiled`` does with what it does not know.
    """

    compiled: Callable[..., Any]
    other: Callable[..., Any]


KERNELS: dict[str, Kernel] = {}
"""Every kernel, by name."""


def _kernel(compiled: Callable[_P, _T], other: Callable[_P, _T]) -> Callable[_P, _T]:
    KERNELS[compiled.__name__] = Kernel(compiled, other)
    return compiled if is_compiled() else other


def _only_compiled(compiled: Callable[_P, _T], leaving: _T) -> Callable[_P, _T]:
    """Returns ``compiled``, or without the core a function that always returns ``leaving``."""
    return _kernel(compiled, lambda *_, **__: leaving)


gather = _kernel(rows.gather, rows.gather_by_numpy)
gather_runs = _kernel(rows.gather_runs, rows.gather_runs_by_arrow)
copy_pieces = _kernel(rows.copy_pieces, rows.copy_pieces_by_numpy)
pad_runs = _kernel(rows.pad_runs, rows.pad_runs_by_numpy)
copy_value = _kernel(values.copy_value, values.copy_value_by_numpy)
word_order = _kernel(values.word_order, values.word_order_by_numpy)
resize = _kernel(pixels.resize, pixels.resize_by_numpy)
copy_image = _kernel(pixels.copy_image, pixels.copy_image_by_numpy)
normalize = _kernel(pixels.normalize, pixels.normalize_by_numpy)
crc32 = _kernel(values.crc32, values.crc32_by_zlib)
objects = _kernel(values.objects, values.objects_by_arrow)
longest_value = _kernel(parquet.longest_value, parquet.longest_value_by_python)

# Without the core, their callers do the work.
passes = _only_compiled(parquet.passes, False)
footer_fields = _only_compiled(parquet.footer_fields, None)
cut_row_groups = _only_compiled(parquet.cut_row_groups, None)
chunk_facts = _only_compiled(parquet.chunk_facts, None)
read_cells = _only_compiled(parquet.read_cells, (None, parquet.NO_FILE))
locate_cells = _only_compiled(parquet.locate_cells, None)
read_pages = _kernel(parquet.read_pages, lambda _, pages, *__: [None] * len(pages))
decode_chunks = _only_compiled(parquet.decode_chunks, (parquet.NO_FILE, 0))
decode_part = _only_compiled(jpeg.decode_part, False)
decode_parts = _kernel(jpeg.decode_parts, lambda parts, *_, **__: np.zeros(len(parts.data), bool))
exchange_of = _only_compiled(dlpack.exchange_of, None)

decodes_parts: Callable[[], bool] = jpeg.decodes_parts if is_compiled() else bool  # that is False
"""Returns whether `decode_parts` can decode JPEG images here."""
CHUNK_COMPRESSIONS: Mapping[str, int] = parquet.COMPRESSIONS if is_compiled() else {}
"""The compressions of the column chunks that `decode_chunks` knows, with their codes."""
