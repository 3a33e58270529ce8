"""`instead_of`: what to write for a name of another library that a dataset has no verb for.

`did_you_mean` in `tracebacks` knows the names for which there is a verb.
"""

from __future__ import annotations

_LENGTH = "len(...) counts its elements"
_LOOK = "explain() shows the plan, and the command `parquetry describe URL` the values of each field"
_SHOW = "parquetry.plot(batch) draws a batch; a notebook shows the first rows of the dataset itself"
_IMAGES = "Write a function that changes the image, for transform(fn)"
_ORDER = "Rows come in the order of the files; `parquetry rewrite URL OUT --sort-by FIELD` sorts the files"
_AHEAD = "Batches are made ahead without it"
_TABLE = "Iterate it, or read the files with pyarrow.parquet.read_table(...)"
_INSTEAD = {
    "collect": _TABLE,
    "color_jitter": _IMAGES,
    "count": _LENGTH,
    "describe": f"parquetry.describe(batch) describes a batch; {_LOOK}",
    "display": _SHOW,
    "dtypes": _LOOK,
    "info": _LOOK,
    "inspect": _LOOK,
    "jitter": _IMAGES,
    "len": _LENGTH,
    "length": _LENGTH,
    "num_rows": _LENGTH,
    "order_by": _ORDER,
    "plot": _SHOW,
    "prefetch": _AHEAD,
    "rotate": _IMAGES,
    "shape": _LOOK,
    "show": _SHOW,
    "show_batch": _SHOW,
    "size": _LENGTH,
    "sort": _ORDER,
    "sort_by": _ORDER,
    "sort_values": _ORDER,
    "stats": "Its iterator has them: iterator = iter(...), and then iterator.stats()",
    "to_pandas": _TABLE,
}


def instead_of(name: str) -> str:
    """Returns what to write instead of a name. Append it to a message; it is empty if the name is not known.

    >>> instead_of("count")
    ' len(...) counts its elements.'
    """
    return f" {_INSTEAD[name]}." if name in _INSTEAD else ""
