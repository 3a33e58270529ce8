"""Graphs hold no credentials; the process that made the dataset has them, and other processes report what they lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
import tensorflow as tf
from builders import build
from s3_server import S3Server, serving
from tensorflow.python.ops import gen_dataset_ops  # the public names need a file

from parquetry.common import Pipeline, mix
from parquetry.common.storage.stores import without_secret_options
from parquetry.common.transport.sidecar.request_secrets import OPT_IN, for_graph
from parquetry.tf_plugin import ParquetDataset

SECRET = "pLaNtEdSeCrEt"
ROWS = list(range(33))
READS_A_GRAPH = """
import sys
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops
from parquetry.tf_plugin import load_ops
load_ops()
graph = tf.compat.v1.GraphDef.FromString(open(sys.argv[1], "rb").read())
name = next(node.input[0] for node in graph.node if node.op == "_Retval")
with tf.Graph().as_default() as made:
    (variant,) = tf.import_graph_def(graph, return_elements=[name if ":" in name else name + ":0"], name="")
    iterator = tf.raw_ops.AnonymousIterator(output_types=[tf.int64], output_shapes=[[]])
    begun = tf.raw_ops.MakeIterator(dataset=variant, iterator=iterator)
    with tf.control_dependencies([begun]):
        first = tf.raw_ops.IteratorGetNext(iterator=iterator, output_types=[tf.int64], output_shapes=[[]])
with tf.compat.v1.Session(graph=made) as session:
    print(int(session.run(first)[0]))
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    build(tmp_path / "lake" / "rows", [[20], [13]], names=("id",))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", OPT_IN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with serving(tmp_path) as server:
        server.key = "KEY"
        yield server


def datasets(store: S3Server) -> dict[str, ParquetDataset]:
    url, files = store.url("lake/rows", user=f"KEY:{SECRET}"), f"simplecache::file://{store.root}/lake/rows"
    options = {"simplecache": {"cache_storage": str(store.root / "kept"), "secret": SECRET}}
    filesystem = pafs.S3FileSystem(
        access_key="KEY", secret_key=SECRET, endpoint_override=f"http://{store.address}", region="us-east-1"
    )
    pipelines = {
        "the URL": Pipeline(url, ["id"]),
        "an option": Pipeline(files, ["id"], storage_options=options),
        "a file system": Pipeline("lake/rows", ["id"], filesystem=filesystem),
        "a mix": mix([Pipeline(url, ["id"]), Pipeline(url, ["id"])], seed=1, stop="all"),
    }
    return {name: ParquetDataset.from_pipeline(pipeline) for name, pipeline in pipelines.items()}


def graph_of(dataset: tf.data.Dataset) -> bytes:
    return bytes(gen_dataset_ops.dataset_to_graph_v2(dataset._variant_tensor).numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the URL", "an option", "a file system", "a mix"])
def test_no_graph_holds_a_secret_and_the_rows_are_read(store: S3Server, name: str) -> None:
    dataset = datasets(store)[name]

    @tf.function
    def total() -> tf.Tensor:
        made_inside = datasets(store)[name]
        return dataset.concatenate(made_inside).reduce(tf.constant(0, tf.int64), lambda sum, row: sum + row["id"])

    read = total.get_concrete_function()
    assert SECRET not in str(read.graph.as_graph_def())
    assert SECRET.encode() not in graph_of(dataset)
    assert SECRET not in json.dumps(dataset.state_dict(0)) + repr(dataset) + dataset.explain()
    assert int(read()) == (4 if name == "a mix" else 2) * sum(ROWS)
    assert int(dataset.cardinality()) == (66 if name == "a mix" else 33)


def test_equal_datasets_with_other_credentials_have_other_tokens(store: S3Server) -> None:
    good = ParquetDataset(store.url("lake/rows", user="KEY:one"), ["id"])
    bad = ParquetDataset(store.url("lake/rows", user="KEY:two"), ["id"])
    again = ParquetDataset(store.url("lake/rows", user="KEY:one"), ["id"])
    assert [int(row["id"]) for row in good] == ROWS
    for dataset in (bad, again):
        dataset._dataset()
    assert good._request != bad._request
    assert good._request == again._request


def in_another_process(graph: bytes, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "graph").write_bytes(graph)
    command = [sys.executable, "-c", READS_A_GRAPH, str(folder / "graph")]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_another_process_takes_the_credentials_from_its_environment(store: S3Server, tmp_path: Path) -> None:
    graph = graph_of(datasets(store)["the URL"])
    found = in_another_process(graph, tmp_path, AWS_ACCESS_KEY_ID="KEY", AWS_SECRET_ACCESS_KEY="any")
    assert (found.returncode, found.stdout) == (0, "0\n"), found.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["the URL", "a file system"])
def test_another_process_without_credentials_says_which_are_missing(store: S3Server, name: str, tmp_path: Path) -> None:
    found = in_another_process(
        graph_of(datasets(store)[name]), tmp_path, AWS_ACCESS_KEY_ID="no", AWS_SECRET_ACCESS_KEY="no"
    )
    what = {"the URL": "the password in a URL", "a file system": "filesystem="}[name]
    assert found.returncode
    assert f"Expected the credentials of the pipeline ({what}), got none" in found.stderr
    assert SECRET not in found.stderr


@pytest.mark.nightly
def test_a_graph_holds_the_secrets_if_you_ask_for_that(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPT_IN, "1")
    found = in_another_process(graph_of(datasets(store)["a file system"]), tmp_path)
    assert (found.returncode, found.stdout) == (0, "0\n"), found.stderr


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("anon", True, True),
        ("timeout", 5, 5),
        ("endpoint_url", "http://host:9", "http://host:9"),
        ("endpoint_url", f"http://me:{SECRET}@host", None),
        ("secret", SECRET, None),
        ("connection_string", SECRET, None),
        ("whatever", SECRET, None),
        ("token", "anon", "anon"),
        ("token", SECRET, None),
        ("client_kwargs", {"region_name": "eu", "aws_secret_access_key": SECRET}, {"region_name": "eu"}),
        ("headers", {"Authorization": SECRET}, {}),
        ("args", [SECRET], None),
    ],
)
def test_an_option_is_secret_unless_its_name_is_known_to_hold_none(name: str, value: Any, kept: Any) -> None:
    assert without_secret_options(name, value) == kept


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/rows", "/data/rows"),
        ("s3://lake/rows?region=eu", "s3://lake/rows?region=eu"),
        (f"s3://KEY:{SECRET}@lake/rows?region=eu", "s3://lake/rows?region=eu"),
        (f"https://host/a.parquet?X-Signature={SECRET}&version=3", "https://host/a.parquet?version=3"),
        ("gs://anonymous@lake/rows?scheme=http", "gs://anonymous@lake/rows?scheme=http"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
    ],
)
def test_a_url_in_a_graph_has_no_secrets_but_all_else(url: str, shown: str) -> None:
    pipeline = {"urls": [url], "storage_options": {}, "filesystem": None, "mixture": None}
    public, secrets = for_graph(json.dumps({"pipeline": pipeline}))
    assert json.loads(public)["pipeline"]["urls"] == [shown]
    assert secrets == ([] if url == shown else [[["urls", 0], url]])
