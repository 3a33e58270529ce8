"""Credentials in URLs and options appear in no text that a user, a log or another program sees."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import build
from faces import import_framework
from processes import command_of, unless_ended
from s3_server import S3Server, serving
from signed_store import SignedStore

import parquetry
from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, mix
from parquetry.common.apps.reports import verify
from parquetry.common.base.errors import DatasetError, ParquetryError
from parquetry.common.storage import retries
from parquetry.common.write import write_dataset

SECRET = "pLaNtEdSeCrEt"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    build(tmp_path / "lake" / "rows", [[20], [13]], names=("id",))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler, logger = logging.StreamHandler(text), logging.getLogger("parquetry")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(level)


def url(store: S3Server, path: str = "lake/rows") -> str:
    return store.url(path, user=f"KEY:{SECRET}")


def test_no_description_shows_a_secret(store: S3Server) -> None:
    rows = Pipeline(url(store), ["id"], executor="threads").shuffle(9, seed=1)
    iterator = iter(rows)
    next(iterator)
    shown = {
        "repr": repr(rows),
        "str": str(rows),
        "explain": rows.explain(),
        "explain of a mix": mix([rows, rows], seed=1).explain(),
        "state": json.dumps(iterator.state_dict()),
        "stats": repr(iterator.stats()),
        "dataset": repr(rows.dataset.files) + repr(rows.dataset.listing),
        "version": rows.dataset.version + rows.dataset.fingerprint,
    }
    assert {name for name, text in shown.items() if SECRET in text} == set()
    assert "s3://lake/rows" in shown["repr"]


@pytest.mark.parametrize(
    ("name", "framework"), [("ParquetIterable", "torch"), ("ParquetPipe", "torch"), ("ParquetDataset", "tensorflow")]
)
def test_no_description_in_a_framework_shows_a_secret(store: S3Server, name: str, framework: str) -> None:
    import_framework(framework)
    text = repr(getattr(parquetry, name)(url(store), ["id"]).shuffle(9, seed=1))
    assert SECRET not in text


ERRORS: dict[str, Callable[[S3Server], Any]] = {
    "no such path": lambda store: len(Pipeline(url(store, "lake/none"))),
    "no such field": lambda store: len(Pipeline(url(store), ["none"])),
    "a pattern": lambda store: len(Pipeline(url(store, "lake/*.parquet"))),
    "two stores": lambda store: len(Pipeline([url(store), f"file://{store.root}/lake/rows"])),
    "an unknown scheme": lambda store: len(Pipeline(f"nothing://KEY:{SECRET}@lake/rows")),
    "options": lambda store: len(Pipeline(url(store), storage_options={"none": SECRET})),
    "a local option": lambda store: len(Pipeline("/data", storage_options={"secret": SECRET})),
    "a write": lambda store: write_dataset(url(store, "lake/new"), Pipeline(url(store)).schema, [{"id": 1}]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_no_error_shows_a_secret(store: S3Server, name: str) -> None:
    with pytest.raises(ParquetryError) as caught:  # each has its own text, all without the secret
        ERRORS[name](store)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(pickle.loads(pickle.dumps(caught.value)))


def test_a_warning_of_a_file_listed_twice_shows_no_secret(store: S3Server, logged: io.StringIO) -> None:
    assert len(Pipeline([url(store), url(store)])) == len(Pipeline(url(store)))
    assert "several URLs of one dataset lead to it" in logged.getvalue()
    assert SECRET not in logged.getvalue()


def signed(tmp_path: Path, damage: str = "value") -> Pipeline:
    """Two files whose URLs have signatures. The first has a damaged value, page or footer."""
    codec = NdarrayCodec()
    points = UnischemaField("points", np.float32, (4,), codec)
    good = bytes(codec.encode(points, np.zeros(4, np.float32)))
    for name, values in {"a": [good, b"damaged", good], "b": [good]}.items():
        table = pa.table({"id": np.arange(len(values)), "points": pa.array(values, pa.binary())})
        pq.write_table(table, tmp_path / f"{name}.parquet", write_page_checksum=True, use_dictionary=False)
    path = tmp_path / "a.parquet"
    if damage == "footer":
        os.truncate(path, 100)
    elif damage == "page":
        path.write_bytes(path.read_bytes().replace(b"damaged", b"changed"))
    urls = [f"https://host/{name}.parquet?versionId=7&X-Amz-Signature={SECRET}/{SECRET} {SECRET}" for name in "ab"]
    return Pipeline(urls, ["id", points], filesystem=SignedStore(str(tmp_path)), executor="threads")


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_rows_that_are_left_out_are_shown_without_signatures(tmp_path: Path, logged: io.StringIO, level: int) -> None:
    logging.getLogger("parquetry").setLevel(level)
    iterator = iter(signed(tmp_path).with_options(on_error="skip"))
    assert len(list(iterator)) == 3
    stats = iterator.stats()
    assert [row.file for row in stats.skipped] == ["https://host/a.parquet"]
    shown = f"{stats} {stats!r} {json.dumps(stats.to_json())} {iterator.state_dict()} {logged.getvalue()}"
    assert SECRET not in shown


def test_damage_is_shown_without_signatures(tmp_path: Path, logged: io.StringIO) -> None:
    found = [damage for kind in ("page", "footer") for damage in verify(signed(tmp_path, kind)).damages]
    assert [(damage.check, damage.file) for damage in found] == [
        ("bytes", "https://host/a.parquet"),
        ("file", "https://host/a.parquet"),
    ]
    assert SECRET not in repr(found) + logged.getvalue()


@pytest.mark.parametrize("damage", ["value", "page", "footer"])
def test_errors_about_damage_show_no_signature(tmp_path: Path, damage: str) -> None:
    with pytest.raises(ParquetryError, match=r"file https://host/a.parquet\b") as caught:
        list(signed(tmp_path, damage))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_option_that_the_client_does_not_take_is_named(tmp_path: Path) -> None:
    class Strict(SignedStore):
        """Connects when it is first asked, as S3's client does."""

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            return super().info(path, **options) if self._connected(**self.storage_options["client_kwargs"]) else {}

        def _connected(self, *, timeout: int = 0) -> bool:
            return True

    store = Strict(str(tmp_path), client_kwargs={"secret_typo": SECRET})
    message = r"dataset 'https://host/a.parquet': cannot be reached: its client does not take the option 'secret_typo'"
    with pytest.raises(DatasetError, match=message) as caught:
        len(Pipeline(f"https://host/a.parquet?sig={SECRET}", filesystem=store))
    assert str(caught.value).endswith("Correct storage_options.")
    with pytest.raises(DatasetError, match=r"'https://host/new': the store's client does not take .* 'secret_typo'"):
        write_dataset(
            "https://host/new", Unischema("a", [UnischemaField("id", "int64")]), [{"id": 1}], filesystem=store
        )
    assert SECRET not in "".join(traceback.format_exception(caught.value))


ODD = {
    "slash": f"a/{SECRET}",
    "space": f"a {SECRET}",
    "newline": f"{SECRET}\n",
    "quote": f"a'/{SECRET}",
    "hash": f"#{SECRET}",
}


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
@pytest.mark.parametrize("odd", ODD)
def test_a_secret_that_is_not_percent_encoded_is_shown_nowhere(scheme: str, odd: str) -> None:
    rows = Pipeline(f"{scheme}://KEY:{ODD[odd]}@lake/rows?region=us-east-1", ["id"])
    with pytest.raises(DatasetError, match=r"In its secret, write .* as %") as caught:
        len(rows)
    told = "".join(traceback.format_exception(caught.value))
    with pytest.raises(DatasetError) as caught:
        write_dataset(rows.urls[0], Unischema("rows", [UnischemaField("id", "int64")]), [{"id": 1}])
    assert SECRET not in told + "".join(traceback.format_exception(caught.value)) + repr(rows)
    assert f"'{scheme}://lake/rows'" in repr(rows)


def test_a_percent_encoded_secret_is_accepted(store: S3Server) -> None:
    assert len(Pipeline(store.url("lake/rows", user="KEY:a%2Fb%20c"))) == 33


@pytest.mark.parametrize("status", [301, 403, 404, 503])
def test_no_error_or_log_of_an_epoch_shows_a_secret(
    store: S3Server, status: int, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 2)
    rows = Pipeline(url(store), ["id"], executor="threads", workers=1)
    assert len(rows) == 33
    store.fault = lambda method, path: status if method == "GET" and "part" in path else None
    with pytest.raises(DatasetError, match="row group 0: cannot be read") as caught:
        list(rows)
    assert "damaged" not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    store.fault = lambda method, path: status
    with pytest.raises(DatasetError, match="lake/rows") as caught:
        len(Pipeline(url(store)))
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in logged.getvalue()
    assert ("transient store error, retrying" in logged.getvalue()) == (status == 503)


def test_no_process_shows_a_secret(store: S3Server) -> None:
    iterator = iter(Pipeline(url(store), ["id"], executor="sidecar", workers=1))
    next(iterator)
    children = psutil.Process().children(recursive=True)
    commands = [command_of(each) for each in children]
    assert any(commands)
    assert SECRET not in " ".join(commands)
    environments = [unless_ended(Path(f"/proc/{each.pid}/environ").read_bytes, otherwise=b"") for each in children]
    assert any(environments)
    assert SECRET.encode() not in b" ".join(environments)


def test_kept_files_hold_no_secret(store: S3Server, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    rows = Pipeline(url(store), ["id"], executor="threads").where([("id", ">", 3)]).cache(str(kept))
    assert len(list(rows)) == 29
    places = [kept, Path(os.environ["PARQUETRY_CACHE_DIR"])]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
