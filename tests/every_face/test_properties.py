"""Random chains over random datasets in both frameworks: the rows of a list comprehension, in the same order."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faces import Face, MapFace, NodeFace, TensorFlowFace, TorchFace, run_on_faces, run_resumed
from hypothesis import given
from hypothesis import strategies as st
from mishaps import run_changed, run_failing, run_limited, run_refilling, run_skipping, run_unmeasured
from oracle import examples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="thread")]  # PARQUETRY_EXAMPLES may request many


@dataclass
class Plugin:
    """The faces of a framework.

    Attributes:
        faces: those that any chain runs on.
        resumable: those of them whose states are loaded.
        loaders: more faces, which start processes.
        examples: how many chains there are of each kind.
    """

    faces: list[Any]
    resumable: list[Any]
    loaders: list[Any]
    examples: int


TORCH = [TorchFace(), TorchFace(kind="ParquetPipe"), NodeFace()]
PLUGINS = {
    "tensorflow": Plugin([TensorFlowFace(), TensorFlowFace(as_numpy=True)], [TensorFlowFace()], [], 6),
    "torch": Plugin(TORCH, TORCH, [TorchFace(1), TorchFace(2, kind="ParquetPipe"), TorchFace(3)], 15),
}
of_each_plugin = pytest.mark.parametrize(
    "plugin", [pytest.param(each, id=name) for name, each in PLUGINS.items() if importlib.util.find_spec(name)]
)


def check(count: int, run: Callable[..., None], *arguments: Any) -> None:
    """Runs a property on random data."""

    @examples(count)
    @given(st.data())
    def drawn(data: st.DataObject) -> None:
        run(data, *arguments)

    drawn()


@of_each_plugin
def test_any_chain_gives_what_a_list_comprehension_gives(cache: Path, plugin: Plugin) -> None:
    check(plugin.examples + plugin.examples // 3, run_on_faces, cache, plugin.faces)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize(
    "faces", [[*[MapFace()] * 9, MapFace(2)], PLUGINS["torch"].loaders], ids=["rows by number", "loaders"]
)
def test_any_chain_is_the_same_by_number_and_in_loaders(cache: Path, faces: Sequence[Face]) -> None:
    check(10, run_on_faces, cache, faces)


@of_each_plugin
def test_any_chain_resumes_where_it_was_stopped(cache: Path, plugin: Plugin) -> None:
    check(plugin.examples, run_resumed, cache, plugin.resumable)


MISHAPS = {
    "an element that fails is one element": run_failing,
    "rows that fail are left out and others fill their places": run_skipping,
    "batches of a bucket are refilled": run_refilling,
    "rows without a length are as if they were not stored": run_unmeasured,
    "files that change between epochs are noticed": run_changed,
}


@of_each_plugin
@pytest.mark.parametrize("mishap", MISHAPS)
def test_what_goes_wrong_changes_nothing_else(plugin: Plugin, mishap: str) -> None:
    count = 5 if MISHAPS[mishap] is run_changed else plugin.examples
    check(count, MISHAPS[mishap], [*plugin.faces, *plugin.faces, *plugin.loaders])


@of_each_plugin
def test_all_elements_before_one_error_too_many_come(plugin: Plugin) -> None:
    check(6, run_limited, plugin.faces)
