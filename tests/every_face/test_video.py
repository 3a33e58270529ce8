"""Every face gives the same frames, in every form, and continues them after a state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces import installed_faces, plain_element
from movies import HEIGHT, WIDTH, number_of, write_movie

from parquetry.common import Pipeline, UnischemaField, VideoReference
from parquetry.common.base.errors import PipelineError
from parquetry.common.server import serve

pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")

CHAINS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "rows": lambda rows: rows.take(13),
    "shuffled": lambda rows: rows.shuffle(30, seed=1).batch(7),
    "filtered, sharded": lambda rows: rows.where([("id", ">=", 10)]).shuffle(15, seed=2).shard(3, 1).batch(4),
    "windows": lambda rows: rows.ngram(length=3).shuffle(20, seed=3).take(8).batch(5),
    "windows with edges": lambda rows: (
        rows.ngram(offsets={"front": [-2, 0], "id": [-2, 0]}, edges="clamp").take(8).batch(6)
    ),
    "floats, channels first": lambda rows: rows.normalize("front").permute("front", dims=("C", "H", "W")).batch(8),
    "resized": lambda rows: rows.resize("front", (16, 32)).batch(8),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_movie(tmp_path_factory.mktemp("movie") / "data", range(24), row_group_rows=8, files=2)


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_frames_show_their_rows(url: str, face: Any) -> None:
    expected = {name: Pipeline(url, executor="threads") for name in CHAINS}
    for name, chain in CHAINS.items():
        elements = face.elements(chain(Pipeline(url)))
        alone = chain(expected[name])
        assert elements == [plain_element(alone.element, element) for element in alone], name
        rows = elements if isinstance(elements[0], dict) else [row for batch in elements for row in batch]
        for row in rows if name in ("rows", "shuffled", "filtered, sharded") else ():
            assert number_of(np.array(row["front"])) == row["id"], name


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_a_state_continues_frames(url: str, face: Any) -> None:
    def chain() -> Pipeline:
        return Pipeline(url).ngram(length=2).shuffle(30, seed=4).batch(4)

    whole = face.elements(chain())
    for steps in (1, 4):
        rest = [plain_element(chain().element, element) for element in face.resumed(chain(), steps)]
        assert rest == whole[steps:]


def test_a_client_of_a_server_names_no_videos(tmp_path: Path) -> None:
    url = write_movie(tmp_path / "data", range(5))
    secret = VideoReference(file="front__file", frame="front__frame", root="/secret")
    with serve(Pipeline(url)) as server:
        served = Pipeline(address=server.address)
        assert [number_of(row["front"]) for row in served] == [0, 1, 2, 3, 4]
        with pytest.raises(PipelineError, match="a client cannot say which videos to read"):
            next(iter(served.select([UnischemaField("view", np.uint8, (HEIGHT, WIDTH, 3), secret)])))
