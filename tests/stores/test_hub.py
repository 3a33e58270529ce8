"""``hf://`` paths give every reader the rows of a local dataset, and say what is wrong with a path or a token."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from builders import Built, build
from faces import plain
from hub_server import COMMIT, TOKEN, Hub, hub_of
from lerobot_sets import write_lerobot
from torch.utils.data import DataLoader

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.storage import retries
from parquetry.torch_plugin import ParquetIterable

URL = "hf://datasets/user/rows/data"
NAMES = ("id", "tags", "image")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("hub") / "data", [[20, 13], [7, 0, 30], [30]], names=NAMES)


@pytest.fixture
def hub(built: Built, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with hub_of(Path(built.url).parent) as hub:
        yield hub


def options(hub: Hub, token: str = TOKEN) -> dict[str, Any]:
    return {"storage_options": {"endpoint": hub.url, "token": token}}


def shuffled(rows: Any) -> list[Any]:
    return [plain(row) for row in rows.shuffle(20, seed=3)]


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_dataset_of_the_hub_has_the_rows_of_the_local_one(built: Built, hub: Hub, executor: str) -> None:
    expected = shuffled(Pipeline(built.url, executor="threads"))
    assert shuffled(Pipeline(URL, executor=executor, **options(hub))) == expected
    assert hub.counts["GET resolve"] <= 3 + 2 * 5  # the footers, and at most two for each row group that has rows


def test_loader_workers_read_it_too(built: Built, hub: Hub) -> None:
    def by_workers(*args: Any, **given: Any) -> list[Any]:
        rows = ParquetIterable(*args, **given).shuffle(20, seed=3)
        return [plain(row) for row in DataLoader(rows, batch_size=None, num_workers=2)]

    assert by_workers(URL, **options(hub)) == by_workers(built.url)


def test_the_commit_is_part_of_the_dataset(built: Built, hub: Hub) -> None:
    rows = Pipeline.from_huggingface_parquet(URL, executor="threads", **options(hub))
    assert f"user/rows@{COMMIT}/data" in repr(rows)
    assert shuffled(rows) == shuffled(Pipeline(built.url, executor="threads"))


def test_requests_that_fail_for_a_moment_are_repeated(built: Built, hub: Hub) -> None:
    rows = Pipeline(URL, executor="threads", **options(hub))
    assert len(rows) == 100
    hub.failures += [HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY]
    assert shuffled(rows) == shuffled(Pipeline(built.url, executor="threads"))
    assert hub.failures == []


@pytest.mark.parametrize("path", ["user/none/data", "user/rows/none", "user/rows@v9/data"])
def test_a_path_that_is_not_there_is_an_error_that_names_it(hub: Hub, path: str) -> None:
    with pytest.raises(DatasetError, match=rf"hf://datasets/{path}.*found nothing there"):
        len(Pipeline(f"hf://datasets/{path}", **options(hub)))


def test_a_wrong_token_is_an_error_that_says_what_to_set_and_shows_none(hub: Hub) -> None:
    with pytest.raises(DatasetError, match=r"401 Unauthorized.*Set HF_TOKEN") as caught:
        len(Pipeline(URL, **options(hub, token="hf_wrong")))
    assert "hf_wrong" not in str(caught.value)
    assert TOKEN not in repr(Pipeline(URL, **options(hub)))


def test_a_lerobot_dataset_of_the_hub_is_read_at_its_commit(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "rows", still=True)
    with hub_of(root) as hub:
        url = "hf://datasets/user/rows"
        robot = Pipeline.from_lerobot(url, episodes=[1, 2], revision="main", executor="threads", **options(hub))
        assert f"user/rows@{COMMIT}" in repr(robot)
        assert shuffled(robot) == shuffled(Pipeline.from_lerobot(root, episodes=[1, 2], executor="threads"))
        with pytest.raises(DatasetError, match="LeRobot dataset 'hf://datasets/user/rows': cannot be reached"):
            Pipeline.from_lerobot(url, revision="v9", **options(hub))
