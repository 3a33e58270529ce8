"""``prefetch_to_device``: the same elements on the device that was asked for, or an error that says why not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from processes import run_python

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError
from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.devices import checked_device, text_in

PROGRAM = Path(__file__).with_name("device_program.py")
CPUS = [SimpleNamespace(name=f"/device:CPU:{number}", device_type="CPU") for number in range(2)]
GPU = SimpleNamespace(name="/device:GPU:0", device_type="GPU")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("data") / "rows"
    schema = Unischema("rows", [UnischemaField("id", np.int64), UnischemaField("name", str)])
    rows = [{"id": number, "name": f"n{number}"} for number in range(40)]
    write_dataset(str(target), schema, rows, row_group_rows=5)
    return str(target)


def test_on_the_first_cpu_it_is_prefetch(url: str) -> None:
    dataset = ParquetDataset(url, ["id", "name"]).batch(6)
    for device in ("/cpu:0", "CPU", tf.config.list_logical_devices("CPU")[0]):
        prefetched = dataset.prefetch_to_device(device)
        assert prefetched.cardinality().numpy() == 7
        assert [batch["id"].shape[0] for batch in prefetched] == [6] * 6 + [4]


@pytest.mark.slow
def test_batches_on_another_device_keep_order_epochs_states_and_errors(url: str) -> None:
    run = run_python(PROGRAM, url)
    assert run.returncode == 0, run.stderr[-4000:]
    seen = json.loads(run.stdout.strip().splitlines()[-1])
    first, second = seen["epochs"]
    assert first == seen["expected"] == seen["resumed"]
    assert second != first
    assert sorted(number for batch in second for number in batch) == list(range(40))
    assert seen["places"] == ["/device:CPU:1"]
    assert len(seen["names"]) == 6
    assert seen["before"] == list(range(20))
    assert "row 20 fails" in seen["error"]


def test_a_device_that_is_not_there_is_an_error_instead_of_the_cpu(url: str) -> None:
    dataset = ParquetDataset(url, ["id"]).batch(6)
    with pytest.raises(PipelineError, match=r"expected one of the devices /device:CPU:0, got '/gpu:0'\. TensorFlow"):
        dataset.prefetch_to_device("/gpu:0")
    with pytest.raises(PipelineError, match=r"expected a device such as '/gpu:0', got 'nonsense'"):
        dataset.prefetch_to_device("nonsense")
    with pytest.raises(PipelineError, match=r"expected a device such as '/gpu:0', got 3"):
        dataset.prefetch_to_device(3)
    with pytest.raises(PipelineError, match="expected a buffer_size of at least 1, or AUTOTUNE, got 0"):
        dataset.prefetch_to_device("/cpu:0", 0)
    assert checked_device("/device:GPU:0", [*CPUS, GPU]).device_type == "GPU"
    assert checked_device("gpu", [*CPUS, GPU]).device_index is None
    assert checked_device("/job:worker/task:1/gpu:5", CPUS).job == "worker"
    with pytest.raises(PipelineError, match=r"got 'cpu:2'"):
        checked_device("cpu:2", CPUS)


def test_text_for_a_gpu_is_an_error_that_names_the_fields(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda *_: [*CPUS, GPU])
    with pytest.raises(PipelineError, match=r"fields that /gpu:0 can hold, got text in name: TensorFlow keeps"):
        ParquetDataset(url).batch(6).prefetch_to_device("/gpu:0")


def test_text_is_found_in_every_structure() -> None:
    text, number = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)
    spec = {"a": text, "b": (number, {"c": tf.RaggedTensorSpec([None, None], tf.string)}), 3: {"d": number}}
    assert text_in(spec) == ["a", "b.1.c"]
    assert text_in((number, number)) == []
    assert text_in(text) == ["the element"]


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs a GPU")
def test_batches_arrive_on_a_gpu(url: str) -> None:
    batches = list(ParquetDataset(url, ["id"]).batch(6).prefetch_to_device("/gpu:0"))
    assert all("GPU" in batch["id"].device for batch in batches)
    assert [number for batch in batches for number in batch["id"].numpy().tolist()] == list(range(40))
