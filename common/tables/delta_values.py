"""`partition_text` brings a partition value in a Delta log into the form that `dataset.table_read.parse_values` reads.

Writers differ in how they write values, and delta-kernel, which deltalake opens tables with, reads more than one form.
Texts of other forms are returned as they are; `parse_values` refuses them.

Rules: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization.
"""

from __future__ import annotations

import re

import pyarrow as pa

_INTEGER = re.compile(r"\+(\d+)", re.ASCII)
_DATE = re.compile(r"\+?(\d{1,4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_DIGITS = 6  # of the fraction of a second; moments are microseconds
_EPOCH = "1970-01-02"  # the first day that is after 1970 began in every time zone


def partition_text(text: str | None, arrow: pa.DataType) -> str | None:
    """Returns the text of a partition value in the form of `parse_values`.

    Args:
        text: as the log has it; an empty text is null.
        arrow: the type of the column.
    """
    if not text:
        return None
    if pa.types.is_binary(arrow):
        return text.encode().decode("latin-1")
    if pa.types.is_boolean(arrow):
        return text.lower()
    if pa.types.is_integer(arrow) and (found := _INTEGER.fullmatch(text)):
        return found[1]
    if pa.types.is_date(arrow) and (found := _DATE.fullmatch(text)):
        year, month, day = found.groups()
        return f"{year:0>4}-{month:0>2}-{day:0>2}"
    if pa.types.is_timestamp(arrow) and (found := _MOMENT.fullmatch(text)):
        return _moment(text, found)
    return text


def _moment(text: str, found: re.Match[str]) -> str:
    """Returns a moment without an offset and with at most six digits. As in delta-kernel, further digits are dropped.

    Nonzero ones before 1970 stay, so that they are refused: delta-kernel rounds these up, and Spark down.
    """
    fraction, offset = found[2] or "", found[3] or "Z"
    if len(fraction) <= _DIGITS and offset == "Z":
        return text
    if fraction[_DIGITS:].strip("0") and text < _EPOCH:
        return text
    plain = f"{found[1]}.{fraction[:_DIGITS]:0<{_DIGITS}}"
    if offset == "Z":
        return plain
    try:
        moment = pa.scalar(plain + offset).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return text
    shifted: str = moment.cast(pa.string()).as_py()
    return shifted
