"""Values that stand for missing ones: every face gives the same, and a chain with them goes through JSON."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import numpy as np
import pytest
from faces import installed_faces, plain_element
from table_rows import plain

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    schema = Unischema(
        "rows",
        [
            UnischemaField("raw", bytes, nullable=True),
            UnischemaField("text", str, nullable=True),
            UnischemaField("number", np.float64, nullable=True),
            # Not a fixed-size list: pyarrow 18 does not write nulls into those.
            UnischemaField("pair", np.int64, (2,), NdarrayCodec(), nullable=True),
            UnischemaField("list", np.int64, (None,)),
            UnischemaField("words", str, (None,)),
        ],
    )
    rows = [
        {"raw": b"a", "text": "a", "number": 1.5, "pair": np.array([1, 2]), "list": [1], "words": ["a"]},
        {"raw": None, "text": None, "number": None, "pair": None, "list": [], "words": []},
        {"raw": b"\x00", "text": "c", "number": 3.0, "pair": np.array([5, 6]), "list": [2, 3], "words": ["b", "c"]},
    ]
    directory = tmp_path_factory.mktemp("rows") / "rows"
    write_dataset(directory, schema, rows)
    return str(directory)


CHAINS = {
    "raw": lambda rows: rows.select("raw").nulls("fill", "raw", value=b"\xff\x00"),
    "text": lambda rows: rows.select("text").nulls("fill", "text", value="\u00e9"),
    "number": lambda rows: rows.select("number").nulls("fill", "number", value=np.float32(2)),
    "pair": lambda rows: rows.select("pair").nulls("fill", "pair", value=np.array([7, 8])),
    "list": lambda rows: rows.select("list").pad("list", value=-1),
    "words": lambda rows: rows.select("words").pad("words", value="-"),
    "bucket": lambda rows: rows.select("list").bucket("list", [1], batch_size=2, pad_value=-1),
}
WANTED = {
    "raw": [b"a", b"\xff\x00", b"\x00"],
    "text": ["a", "\u00e9", "c"],
    "number": [1.5, 2.0, 3.0],
    "pair": [[1, 2], [7, 8], [5, 6]],
    "list": [[1, -1], [-1, -1], [2, 3]],
    "words": [["a", "-"], ["-", "-"], ["b", "c"]],
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_every_face_fills_alike(url: str, face: Any, name: str) -> None:
    chain = CHAINS[name](Pipeline(url))
    chain = chain if name == "bucket" else chain.batch(3)
    sent = Pipeline.from_json(json.loads(json.dumps(chain.to_json())))
    assert json.dumps(sent.to_json()) == json.dumps(chain.to_json())
    assert repr(sent) == repr(chain)
    for each in (chain, sent):
        rows = [row for element in face.passes(each)() for row in plain_element(each.element, element)]
        if name in WANTED:
            assert [plain(row[name]) for row in rows] == WANTED[name]
        else:
            assert sorted(plain(row["list"]) for row in rows) == [[-1], [1], [2, 3]]


@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2020, 1, 1),
        datetime.timedelta(1),
        np.datetime64(3, "us"),
        decimal.Decimal("1.5"),
        {1},
        {"base64": "YQ=="},
        1j,
        [1, datetime.date(2020, 1, 1)],
    ],
    ids=repr,
)
def test_other_values_are_refused_at_once(url: str, value: Any) -> None:
    rows = Pipeline(url)
    with pytest.raises(PipelineError, match="nulls: expected value to be a number, text or bytes"):
        rows.nulls("fill", "number", value=value)
    with pytest.raises(PipelineError, match="pad: expected value to be"):
        rows.pad("list", value=value)
    with pytest.raises(PipelineError, match="bucket: expected pad_value to be"):
        rows.bucket("list", [1], batch_size=2, pad_value=value)


def test_text_that_utf_8_cannot_hold_is_refused_at_once(url: str) -> None:
    with pytest.raises(PipelineError, match="nulls: expected value to be text that UTF-8 can hold, got"):
        Pipeline(url).nulls("fill", "text", value="\ud800")
    with pytest.raises(PipelineError, match="pad: expected value to be text that UTF-8 can hold, got"):
        Pipeline(url).pad("words", value="\ud800")
