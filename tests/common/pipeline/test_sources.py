"""What a pipeline reads is a value: it compares, travels, and says what may be done with it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from parquetry.common import Pipeline, class_names, mix
from parquetry.common.base.errors import PipelineError
from parquetry.common.pipeline.sources import Files, Mix, Served, Snapshot


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files")
    pq.write_table(pa.table({"id": range(6)}), path / "0.parquet")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images")
    for name in ("cat", "dog"):
        (path / name).mkdir()
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path / name / "0.png")
    return path


def mixed(url: str) -> Pipeline:
    return mix([Pipeline(url).take(3), mix([Pipeline(url), Pipeline(url)], seed=2)], [1, 3], seed=1)


@pytest.fixture(params=[Files, Snapshot, Mix, Served])
def pipeline(request: pytest.FixtureRequest, url: str, folder: Path) -> Pipeline:
    makers: dict[type, Callable[[], Pipeline]] = {
        Files: lambda: Pipeline(url),
        Snapshot: lambda: Pipeline.from_image_folder(folder),
        Mix: lambda: mixed(url),
        Served: lambda: Pipeline(address="unix:/run/none.sock"),
    }
    made = makers[request.param]()
    assert type(made.source) is request.param
    return made


def test_sources_are_values_that_travel(pipeline: Pipeline) -> None:
    for same in (Pipeline.from_json(pipeline.to_json()), pickle.loads(pickle.dumps(pipeline))):
        assert same.source == pipeline.source
        assert hash(same.source) == hash(pipeline.source)
        assert same.to_json() == pipeline.to_json()
        assert str(same) == str(pipeline)
    with pytest.raises(FrozenInstanceError):
        pipeline.source.urls = ()


def test_only_files_can_be_replaced_by_others(pipeline: Pipeline) -> None:
    source = pipeline.source
    if type(source) is Files:
        assert pipeline.with_urls("/else").urls == ("/else",)
        return
    called = {Snapshot: "a table", Mix: "a mix", Served: "a served one"}[type(source)]
    with pytest.raises(PipelineError, match=f"with_urls: expected a pipeline over files, got {called}"):
        pipeline.with_urls("/else")


def test_versions_are_those_of_every_dataset(url: str) -> None:
    (version,) = Pipeline(url).versions
    assert mixed(url).versions == [version] * 3
    with pytest.raises(PipelineError, match="only the server opens the files"):
        _ = Pipeline(address="unix:/run/none.sock").versions


def test_a_chain_shares_its_dataset_and_lists_files_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0]}), tmp_path / "0.parquet")
    pipeline = Pipeline(tmp_path)
    dataset = pipeline.dataset
    pq.write_table(pa.table({"id": [1]}), tmp_path / "1.parquet")
    assert pipeline.take(3).with_options(workers=2).dataset is dataset
    checked = pipeline.with_options(verify="never")
    assert checked.dataset.verify == "never"
    assert len(checked) == 1
    assert len(Pipeline(tmp_path)) == 2
    assert [leaf.dataset.verify for leaf in mixed(str(tmp_path)).with_options(verify="never").leaves] == ["never"] * 3


def test_class_names_are_those_of_one_dataset(pipeline: Pipeline) -> None:
    names = class_names(pipeline)
    assert names == ({"label": ("cat", "dog")} if type(pipeline.source) is Snapshot else {})
