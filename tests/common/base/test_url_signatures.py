"""A renewed signature in a URL changes neither the file nor anything that was saved about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from signed_store import SignedStore

from parquetry.common import Pipeline
from parquetry.common.base.errors import StateError
from parquetry.common.base.urls import without_signature

SIGNATURES = {
    "AWS": "X-Amz-Algorithm=a&X-Amz-Credential=b%2Fc&X-Amz-Date={0}&X-Amz-Expires=60&X-Amz-SignedHeaders=host"
    "&X-Amz-Security-Token={0}%3D&X-Amz-Signature={0}",
    "AWS, old": "AWSAccessKeyId=a&Expires=1{0}&Signature={0}",
    "Google": "X-Goog-Algorithm=a&X-Goog-Credential=b/2024/c&X-Goog-Date={0}&X-Goog-Expires=60"
    "&X-Goog-SignedHeaders=host&X-Goog-Signature={0}",
    "Google, old": "GoogleAccessId=a&Expires=1{0}&Signature={0}/x",
    "Azure": "sv=2024-11-04&se={0}&sr=b&sp=r&spr=https&skoid={0}&sig={0}/x=",
    "CloudFront": "Policy={0}&Signature={0}&Key-Pair-Id=a",
    "another": "X-Sig={0}",
}


@pytest.fixture
def store(tmp_path: Path) -> SignedStore:
    for number in range(2):
        pq.write_table(pa.table({"id": np.arange(20) + 20 * number}), tmp_path / f"{number}.parquet", row_group_size=5)
    return SignedStore(str(tmp_path))


def over(store: SignedStore, query: str) -> Pipeline:
    urls = [f"https://host/{number}.parquet{query}" for number in range(2)]
    return Pipeline(urls, ["id"], filesystem=store, executor="threads").shuffle(20, seed=1).batch(4)


@pytest.mark.parametrize("kind", SIGNATURES)
def test_a_signature_is_left_out_and_what_chooses_the_content_stays(kind: str) -> None:
    signature = SIGNATURES[kind].format("A")
    assert without_signature(f"https://host/a.parquet?{signature}") == "https://host/a.parquet"
    assert (
        without_signature(f"https://host/a?versionId=7&{signature}&alt=media") == "https://host/a?versionId=7&alt=media"
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a?file=b&token=c",
        "https://host/a?se=1&sp=2&sr=3&sv=4",
        "https://host/a?Expires=1&Policy=2&X-Amz-Date=3",
        "https://host/a",
        "https://host/a?",
        "/data/a?sig=1",
        "s3://bucket/a?sig=1",
    ],
)
def test_without_a_signature_everything_stays(url: str) -> None:
    assert without_signature(url) == url


@pytest.mark.parametrize("kind", SIGNATURES)
def test_a_state_and_a_cache_outlive_a_signature(store: SignedStore, tmp_path: Path, kind: str) -> None:
    first, renewed = (over(store, f"?{SIGNATURES[kind].format(letter)}") for letter in "AB")
    assert first.dataset.schema.fields.keys() == {"id"}
    iterator = iter(first.cache(str(tmp_path / "cache")))
    for _ in range(3):
        next(iterator)
    state, rest = iterator.state_dict(), [batch["id"].tolist() for batch in iterator]
    resumed = iter(renewed.cache(str(tmp_path / "cache")))
    renewed.dataset.row_groups  # noqa: B018  # read the footers
    store.opened.clear()
    assert [batch["id"].tolist() for batch in resumed.load_state_dict(state)] == rest
    assert store.opened == []
    assert first.dataset.fingerprint == over(store, "").dataset.fingerprint


def test_a_state_does_not_outlive_other_content(store: SignedStore) -> None:
    state = iter(over(store, "?versionId=1&X-Sig=A")).state_dict()
    with pytest.raises(StateError, match="dataset"):
        iter(over(store, "?versionId=2&X-Sig=A")).load_state_dict(state)


def test_signatures_do_not_make_two_files_of_one(store: SignedStore) -> None:
    once = Pipeline("https://host/0.parquet?X-Sig=A", filesystem=store)
    twice = Pipeline([f"https://host/0.parquet?X-Sig={letter}" for letter in "AB"], filesystem=store)
    assert len(twice) == len(once)


def test_signatures_do_not_decide_the_order_of_files(store: SignedStore) -> None:
    queries = [("X-Sig=2&part=a", "X-Sig=1&part=b"), ("X-Sig=1&part=a", "X-Sig=2&part=b")]
    found = [
        Pipeline([f"https://host/0.parquet?{query}" for query in pair], filesystem=store).dataset.files
        for pair in queries
    ]
    assert [[file.relative for file in files] for files in found] == [["0.parquet?part=a", "0.parquet?part=b"]] * 2
