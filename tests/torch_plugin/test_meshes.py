"""Ranks that share one model read the same rows: ``shard(mesh=)``, ``shard(group=)``, and a warning without."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from ids import ids
from torch.distributed import device_mesh
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe, meshes, mix
from parquetry.torch_plugin.meshes import Meaning, role_of

FACES = [ParquetIterable, ParquetPipe, ParquetNode]
ROWS = list(range(60))


def _forget_meshes() -> None:
    """Frees the meshes of other tests. Older versions of torch keep them in global dictionaries, too."""
    kept = getattr(device_mesh, "_mesh_resources", None)
    for value in vars(kept).values() if kept is not None else ():
        if isinstance(value, dict):
            value.clear()
    gc.collect()


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes this process rank ``number`` of 4, in a group whose other members are missing."""

    def start(number: int) -> None:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("RANK", str(number))
        dist.init_process_group("fake", rank=number, world_size=4, store=FakeStore())

    _forget_meshes()
    monkeypatch.setattr(meshes, "_sharded_along", set())
    yield start
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("face", "number"), [*((ParquetPipe, number) for number in range(4)), (ParquetIterable, 2), (ParquetNode, 1)]
)
def test_a_mesh_deals_rows_along_the_dimensions_given(
    url: str, face: Any, number: int, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(number)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for sharded in (face(url, ["id"]).shard(mesh=mesh["dp"]), face(url, ["id"]).shard(group=mesh.get_group("dp"))):
        assert ids(sharded) == ROWS[30 * (number // 2) :][:30]
        assert sharded.pipeline == face(url, ["id"]).shard(2, number // 2).pipeline
    assert caplog.text == ""


def test_a_mesh_of_two_data_dimensions_deals_to_both(url: str, rank: Any, caplog: pytest.LogCaptureFixture) -> None:
    rank(3)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    assert ids(ParquetPipe(url, ["id"]).shard(mesh=mesh)) == ROWS[45:]
    assert ids(ParquetPipe(url, ["id"]).shard()) == ROWS[45:]
    assert caplog.text == ""


@pytest.mark.parametrize("names", [("pp", "dp"), ("dp", "cp"), None])
def test_rows_of_their_own_for_ranks_that_hold_one_model_warn(
    url: str, names: Any, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    ids(ParquetPipe(url, ["id"]).shard())
    assert "rows are dealt to all 4 ranks, but a device mesh has the dimensions" in caplog.text
    assert ('shard(mesh=device_mesh["dp"])' in caplog.text) is (names is not None)
    caplog.clear()
    ids(ParquetPipe(url, ["id"]).shard(2, 0))  # the user's own numbers
    assert caplog.text == ""
    assert mesh.ndim == 2


def test_shards_counted_by_the_local_rank_are_right_where_a_mesh_says_so(
    url: str, rank: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rank(3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    ParquetPipe(url, ["id"]).shard(2, 1)
    assert "WORLD_SIZE and RANK say 3 of 4" in caplog.text
    caplog.clear()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    ParquetPipe(url, ["id"]).shard(2, 1)
    assert caplog.text == ""
    assert mesh.ndim == 2


def test_what_cannot_deal_rows_is_refused(url: str, rank: Any) -> None:
    rank(1)
    pipe = ParquetPipe(url, ["id"])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(
        PipelineError, match=r"expected data-parallel dimensions, got \{'dp': 2, 'tp': 2\}.*mesh\[\"dp\"\]"
    ):
        pipe.shard(mesh=mesh)
    with pytest.raises(PipelineError, match="expected mesh= or group=, got both"):
        pipe.shard(mesh=mesh["dp"], group=mesh.get_group("dp"))
    with pytest.raises(PipelineError, match="expected num_shards and index, or mesh=, or group=, got several"):
        pipe.shard(4, 1, mesh=mesh["dp"])
    with pytest.raises(PipelineError, match=r"shard\(group=...\): expected a group that contains this process"):
        pipe.shard(group=dist.new_group([0, 2]))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("mesh", [3, "dp"])
def test_objects_that_are_not_meshes_are_refused(url: str, face: Any, mesh: Any) -> None:
    for make in (lambda: face(url, mesh=mesh), lambda: face(url).shard(mesh=mesh)):
        with pytest.raises(PipelineError, match=f"expected a DeviceMesh, got {mesh!r}"):
            make()


@pytest.mark.parametrize("face", FACES)
def test_rows_dealt_to_ranks_that_hold_one_model_together_are_warned_of(
    url: str, face: Any, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert ids(face(url, ["id"])) == ROWS[15:30]
    assert 'write shard(mesh=device_mesh["dp"])' in caplog.text
    caplog.clear()
    assert ids(face(url, ["id"]).shard(mesh=mesh["dp"])) == ROWS[:30]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (Meaning.DATA, "dp ddp data fsdp hsdp dp_replicate dp_shard batch replicate data_parallel dataParallel dp2 DP"),
        (Meaning.MODEL, "tp cp sp pp mp tensor context_parallel sequence pipeline_stage etp tensor_model_parallel"),
        (Meaning.MODEL, "expert_tensor_parallel"),
        (Meaning.BOTH, "dp_cp dp_shard_cp loss fsdp_tp data_context ep_tp dp_ep_cp"),
        (Meaning.EXPERT, "ep expert efsdp dp_shard_mod_ep dp_shard_in_ep expert_model_parallel"),
        (Meaning.UNKNOWN, "world x intra_node 0 d_p dprime adapt"),
    ],
)
def test_a_dimension_is_judged_by_the_parts_of_its_name(role: Meaning, names: str) -> None:
    assert {name: role_of(name) for name in names.split()} == dict.fromkeys(names.split(), role)


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("batch", "tp"), 'write shard(mesh=device_mesh["batch"]).'),
        (("pp", "tp"), "write shard(1, 0)."),
        (
            ("dp_shard", "ep"),
            'write shard(mesh=device_mesh["dp_shard", "ep"]) if ranks along "ep" read different rows, which the name '
            'does not say, or shard(mesh=device_mesh["dp_shard"]) if they read the same.',
        ),
        (("x", "tp"), 'write shard(mesh=device_mesh["x"]) if ranks along "x" read different rows'),
        (("dp_shard_cp", "tp"), '"dp_shard_cp" joins data- and model-parallel dimensions. Make a mesh that has them'),
    ],
)
def test_the_warning_says_what_to_write(
    url: str, names: tuple[str, ...], advice: str, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    assert ids(ParquetIterable(url, ["id"])) == ROWS[15:30]
    assert advice in caplog.text
    assert mesh.ndim == 2


def test_a_dimension_that_you_pass_is_data_parallel(url: str, rank: Any, caplog: pytest.LogCaptureFixture) -> None:
    rank(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "ep"))
    assert ids(ParquetIterable(url, ["id"]).shard(mesh=mesh["dp_shard"])) == ROWS[:30]
    assert ids(ParquetIterable(url, ["id"]).shard(mesh=mesh)) == ROWS[15:30]
    assert ids(ParquetIterable(url, ["id"])) == ROWS[15:30]
    assert caplog.text == ""


def test_experts_within_a_data_parallel_dimension_do_not_warn(
    url: str, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(1)
    kept = [init_device_mesh("cpu", (4,), mesh_dim_names=("batch",))]
    kept.append(init_device_mesh("cpu", (2, 2), mesh_dim_names=("efsdp", "ep")))
    kept.append(init_device_mesh("cpu", (4, 1), mesh_dim_names=("dp_shard_cp", "tp")))
    assert ids(ParquetIterable(url, ["id"])) == ROWS[15:30]
    assert ids(ParquetIterable(url, ["id"]).shard(mesh=kept[2]["dp_shard_cp"])) == ROWS[15:30]
    assert caplog.text == ""


def test_flattened_dimensions_with_ranks_of_one_model_are_refused(url: str, rank: Any) -> None:
    rank(1)
    pipe = ParquetPipe(url, ["id"])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
    for name in ("dp_shard_cp", "fsdp", "whatever"):
        with pytest.raises(
            PipelineError, match=rf"got \{{'{name}': 4\}} with the ranks \[0, 1\].*along 'cp'.*mesh\[\"dp_shard\"\]\)"
        ):
            pipe.shard(mesh=mesh["dp_shard", "cp"]._flatten(name))
    assert ids(pipe.shard(mesh=mesh["dp_shard"])) == ROWS[:30]


def test_the_meshes_of_torchtitan_deal_along_batch_only(url: str, rank: Any, caplog: pytest.LogCaptureFixture) -> None:
    rank(1)
    pipe = ParquetPipe(url, ["id"])
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    loading = init_device_mesh("cpu", (1, 2, 2, 1), mesh_dim_names=("pp", "batch", "cp", "tp"))
    dense = init_device_mesh("cpu", (1, 1, 4, 1), mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp"))
    for mesh in (world, dense["fsdp"], loading["batch", "cp"]._flatten("loss")):
        with pytest.raises(
            PipelineError, match=r"ranks \[0, 1\], which hold parts of one model along 'cp'.*\[\"batch\"\]"
        ):
            pipe.shard(mesh=mesh)
    assert ids(pipe.shard(mesh=loading["batch"])) == ROWS[:30]
    assert caplog.text == ""
    ids(pipe)
    assert 'write shard(mesh=device_mesh["batch"]).' in caplog.text


def test_a_flattened_name_whose_parts_are_unknown_is_refused(url: str, rank: Any) -> None:
    rank(1)
    pipe = ParquetPipe(url, ["id"])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard_cp", "tp"))
    with pytest.raises(PipelineError, match=r'"dp_shard_cp" joins data- and model-parallel dimensions, and no mesh'):
        pipe.shard(mesh=mesh["dp_shard_cp"])
    assert ids(pipe.shard(group=mesh.get_group("dp_shard_cp"))) == ROWS[:30]


def test_a_flattened_name_over_data_parallel_ranks_only_is_fine(
    url: str, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(3)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert ids(ParquetPipe(url, ["id"]).shard(mesh=mesh["dp"]._flatten("dp_cp"))) == ROWS[30:]
    assert caplog.text == ""


@pytest.mark.parametrize("face", FACES)
def test_a_dataset_made_with_a_mesh_reads_its_part_after_the_shuffle(
    url: str, face: Any, rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rank(2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plain, dealt = face(url, ["id"]).shuffle(10, seed=3), face(url, ["id"], mesh=mesh["dp"])
    assert ids(dealt) == ROWS[30:]
    expected = ids(plain.shard(mesh=mesh["dp"]))
    assert expected != ROWS[30:]
    assert ids(dealt.shuffle(10, seed=3)) == expected
    assert caplog.text == ""


@pytest.mark.parametrize("face", FACES)
def test_a_dataset_is_dealt_only_once(url: str, face: Any, rank: Any) -> None:
    rank(2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(
        PipelineError, match=r"expected rows to be split across ranks only once, got another shard\(\) as well"
    ):
        face(url, ["id"], mesh=mesh["dp"]).shard(2, 0)
    with pytest.raises(PipelineError, match=r"only once, got a pipeline with shard\(\) as well. Leave one of them"):
        face(ParquetPipe(url, ["id"]).shard(2, 0).pipeline, mesh=mesh["dp"])
    with pytest.raises(PipelineError, match=r"expected data-parallel dimensions, got \{'tp': 2\}"):
        face(url, ["id"], mesh=mesh["tp"])
    with pytest.raises(PipelineError, match=r"mix: expected datasets that all have the same mesh=, got different"):
        mix([face(url, ["id"], mesh=mesh["dp"]), face(url, ["id"])])
