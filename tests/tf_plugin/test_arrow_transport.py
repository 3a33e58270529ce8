"""``transport="arrow"`` matches the native op; where it cannot work, one error says what does."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from builders import STRICT_FIELDS, Built, build, built_once
from faces import plain
from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.base.errors import ParquetryError, PipelineError
from parquetry.common.server import ServerAddress, own_server, serve
from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.arrow_versions import arrow_reader, choose_reader

GOOD = {"tensorflow": "2.16.2", "tensorflow_io": "0.37.1", "numpy": "1.26.4", "pyarrow": "18.1.0"}


def can_read() -> bool:
    try:
        arrow_reader()
    except PipelineError:
        return False
    return True


reads = pytest.mark.skipif(not can_read(), reason="needs TensorFlow 2.16 or 2.17 with tensorflow-io")
# From tensorflow-io's imports, and from setuptools in their dependencies.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(method="thread")]


# --- supported versions ---


def test_tensorflow_2_16_reads_with_tensorflow_io_and_2_17_with_pyarrow() -> None:
    assert choose_reader(**GOOD) == "tensorflow-io"
    assert choose_reader(**{**GOOD, "tensorflow": "2.17.1"}) == "pyarrow"


@pytest.mark.parametrize(
    "other",
    [
        {"tensorflow": "2.21.0"},
        {"tensorflow_io": None},
        {"tensorflow_io": "0.36.0"},
        {"numpy": "2.1.0"},
        {"pyarrow": "21.0.0"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_versions_get_an_error_that_names_what_works(other: dict[str, Any]) -> None:
    with pytest.raises(
        PipelineError, match=r"expected TensorFlow 2\.16 or 2\.17 .*the native op works with .* none of this"
    ):
        choose_reader(**{**GOOD, **other})


@pytest.mark.skipif(can_read(), reason="the versions of this environment fit")
def test_a_dataset_is_refused_where_the_versions_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"transport='arrow': expected TensorFlow 2\.16 or 2\.17"):
        ParquetDataset(str(tmp_path), transport="arrow")


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="expected transport='native' or 'arrow', got 'pigeon'"):
        ParquetDataset(str(tmp_path), transport="pigeon")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(PipelineError, match="expected transport='arrow' with address='unix:/x', got the native op"):
        ParquetDataset(address="unix:/x")


# --- equality with the native op ---


built = built_once([[20, 30], [25]], names=STRICT_FIELDS)


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """Checks that no test leaves a server behind."""
    yield
    if own_server._running:
        gc.collect()
    for thread in threading.enumerate():
        if thread.name == "parquetry-reap":
            thread.join(PATIENCE_S)
    assert not own_server._running


CHAINS = {
    "rows": lambda p: p.shuffle(30, seed=3),
    "batches": lambda p: p.shuffle(30, seed=3).batch(8),
    "whole batches": lambda p: p.batch(8, drop_remainder=True),
    "shard": lambda p: p.shuffle(30, seed=3).shard(2, 1).batch(8),
    "windows": lambda p: p.select("id", "points", "tags", "image", "vector").ngram(length=3).batch(4),
    "windows of rows": lambda p: p.select("id", "points", "tags").ngram(length=3),
    "windows by offset": lambda p: (
        p.select("id", "tags", "points", "image").ngram({0: ["id", "points"], 2: ["tags", "image"]}).batch(3)
    ),
    "padded": lambda p: p.select("id", "points", "tags").pad("points", "tags").batch(4),
    "padded rows": lambda p: p.select("id", "points").pad("points", shape=(5, 3)),
    "repeat": lambda p: p.select("id").shuffle(10, seed=1).repeat(2).batch(8),
}


@reads
@pytest.mark.parametrize("chain", CHAINS)
def test_the_same_elements_in_the_same_order(built: Built, chain: str) -> None:
    pipeline = CHAINS[chain](built.pipeline())
    native = ParquetDataset.from_pipeline(pipeline)
    arrow = ParquetDataset.from_pipeline(pipeline, transport="arrow")
    assert arrow.element_spec == native.element_spec
    assert arrow.cardinality() == native.cardinality()
    for _ in range(2):
        assert [plain(element) for element in arrow] == [plain(element) for element in native]


@reads
def test_masks_travel_as_fields(tmp_path: Path) -> None:
    names = ("id", "speed", "matrix", "names", "codes")
    pipeline = build(tmp_path, [[9, 5]], names=names).pipeline().nulls("mask").batch(4)
    native, arrow = (ParquetDataset.from_pipeline(pipeline, transport=way) for way in ("native", "arrow"))
    assert [plain(element) for element in arrow] == [plain(element) for element in native]


@reads
def test_verbs_keep_the_transport_and_tf_data_goes_on_from_there(built: Built) -> None:
    dataset = ParquetDataset(built.url, ["id"], transport="arrow").shuffle(30, seed=3).shard(2, 0).batch(8)
    native = ParquetDataset(built.url, ["id"]).shuffle(30, seed=3).shard(2, 0).batch(8)
    ids = [plain(ids) for ids in dataset.map(lambda row: row["id"]).prefetch(2)]
    assert ids == [plain(row["id"]) for row in native]


@reads
def test_an_iterator_outlives_its_dataset(built: Built) -> None:
    iterator = iter(ParquetDataset(built.url, ["id"], transport="arrow").batch(8))
    gc.collect()
    assert sum(len(batch["id"]) for batch in iterator) == 75


@reads
def test_an_iterator_that_is_dropped_early_frees_the_server(built: Built) -> None:
    dataset = ParquetDataset(built.url, ["id", "image"], transport="arrow").repeat().batch(2)
    for _ in range(2):
        assert len(list(dataset.take(2))) == 2


@reads
def test_states_go_to_the_native_op_and_back(built: Built) -> None:
    def chain(transport: str) -> ParquetDataset:
        return ParquetDataset(built.url, ["id"], transport=transport).shuffle(30, seed=3).batch(4)  # type: ignore[arg-type, return-value]  # two names

    elements = [[plain(row["id"]) for row in dataset] for dataset in [chain("native")] for _ in range(2)]
    dataset = chain("arrow")
    assert len([row for row, _ in zip(dataset, range(5), strict=False)]) == 5
    state = dataset.state_dict(5)
    for transport in ("native", "arrow"):
        resumed = chain(transport).load_state_dict(state)
        assert [plain(row["id"]) for row in resumed] == elements[0][5:]
        assert [plain(row["id"]) for row in resumed] == elements[1]
    dataset.start_next_at(state)
    assert dataset.state_dict(0) == state
    assert [plain(row["id"]) for row in dataset] == elements[0][5:]
    assert dataset.state_dict(2)["consumed"] == 7
    with pytest.raises(ParquetryError, match="saved for a different"):
        list(chain("arrow").load_state_dict({**state, "fingerprint": "other"}))


@reads
def test_a_dataset_survives_pickle(built: Built) -> None:
    dataset = pickle.loads(pickle.dumps(ParquetDataset(built.url, ["id"], transport="arrow").batch(8)))
    assert sum(len(batch["id"]) for batch in dataset) == 75


@reads
def test_an_error_of_the_server_is_an_error_with_its_text(built: Built) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 33:
            raise ValueError("no thirty-three")
        return row

    dataset = ParquetDataset(built.url, ["id"], transport="arrow").transform(fail).batch(8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)TransformError.*no thirty-three.*Traceback"):
        list(dataset)


@reads
def test_a_server_elsewhere_is_read_by_its_address(built: Built) -> None:
    pipeline = built.pipeline("id", "points", "image").shuffle(30, seed=3).batch(8)
    with serve(pipeline) as server:
        dataset = ParquetDataset(address=server.address, transport="arrow")
        for _ in range(2):
            assert [plain(element) for element in dataset] == [plain(element) for element in pipeline]
        part = ParquetDataset(address=server.address, transport="arrow").shard(3, 1).take(2)
        wanted = [plain(element) for element in Pipeline(address=server.address).shard(3, 1).take(2)]
        assert [plain(element) for element in part] == wanted
        del dataset, part
        gc.collect()


@reads
def test_a_server_with_a_token_is_read_through_this_process(built: Built, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses\n")
    pipeline = built.pipeline("id", "image").shuffle(30, seed=3).batch(8)
    with serve(pipeline, token_file=token) as server:
        address = ServerAddress(url=server.address, token_file=str(token))
        dataset = ParquetDataset(address=address, transport="arrow")
        for _ in range(2):
            assert [plain(element) for element in dataset] == [plain(element) for element in pipeline]
        assert dataset.state_dict(3)["iteration"] == 1
        with pytest.raises(PipelineError, match="got shared=True"):
            ParquetDataset(address=ServerAddress(url="unix:/x", shared=True), transport="arrow")


@reads
def test_a_model_trains_on_it(built: Built) -> None:
    dataset = (
        ParquetDataset(built.url, ["id", "image"], transport="arrow")
        .shuffle(30, seed=3)
        .repeat()
        .batch(8, drop_remainder=True)
    )
    images = dataset.map(lambda row: (tf.cast(row["image"], tf.float32), tf.cast(row["id"] % 2, tf.float32)))
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert len(model.fit(images, epochs=2, steps_per_epoch=9, verbose=0, shuffle=False).history["loss"]) == 2
