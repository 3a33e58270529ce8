"""`ParquetPipe` as a DataPipe: its verbs against list comprehensions, pushed down or left to torch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow.compute as pc
import pytest
from ids import epoch_of
from ids import ids_by_element as ids
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import Batcher, IterableWrapper, Shuffler

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError, StateError
from parquetry.torch_plugin import ParquetPipe, read_parquet


def id_is_even(element: dict[str, Any]) -> bool:
    return bool(element["id"] % 2 == 0)


def is_even(number: Any) -> bool:
    return bool(number % 2 == 0)


def id_only(element: dict[str, Any]) -> Any:
    return element["id"].tolist()


def test_it_is_a_datapipe_that_says_what_it_reads(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=1).batch(4)
    assert isinstance(pipe, IterDataPipe)
    assert repr(pipe).startswith(f"ParquetPipe({url!r})")
    assert str(pipe).endswith("batch(batch_size=4)")
    assert pipe.pipeline == Pipeline(url, ["id"]).shuffle(10, seed=1).batch(4)
    assert ParquetPipe.from_pipeline(pipe.pipeline).pipeline is pipe.pipeline
    assert next(field.name for field in pipe.schema) == "id"
    assert [output.name for output in pipe.element.outputs] == ["id"]
    assert "60 rows" in pipe.explain()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: p.filter(pc.field("id") > 30), list(range(31, 60))),
        (lambda p: p.filter([("drive", "=", "d1")]), list(range(20, 40))),
        (lambda p: p.filter(lambda row: row["stamp"] > 3000, fields=["stamp"]), list(range(20, 60))),
        (lambda p: p.filter(lambda c: c["id"] % 2 == 0, fields=["id"], batched=True), list(range(0, 60, 2))),
        (lambda p: p.header(), list(range(10))),
        (lambda p: p.header(None).take(3), list(range(3))),
        (lambda p: p.take(2).cycle(3), [0, 1] * 3),
        (lambda p: p.batch(25, True), [[*range(25)], [*range(25, 50)]]),
        (lambda p: p.batch(25, drop_last=True), [[*range(25)], [*range(25, 50)]]),
    ],
)
def test_a_verb_gives_the_rows_of_a_list_comprehension(url: str, make: Any, expected: list[Any]) -> None:
    pipe = make(ParquetPipe(url, ["id"], executor="threads"))
    assert isinstance(pipe, ParquetPipe)
    assert ids(pipe) == expected
    assert len(pipe) == len(expected)


def test_verbs_return_new_pipes_and_leave_the_old_one(url: str) -> None:
    pipe = ParquetPipe(url, ["id"])
    assert pipe.take(3) is not pipe
    assert len(pipe) == 60
    assert pipe.with_options(workers=1).pipeline.workers == 1
    assert pipe.cache("/nowhere", 10).pipeline.stages[-1].verb == "cache"


def test_a_filter_by_a_function_of_tensors_is_torchs(url: str) -> None:
    assert ids(ParquetPipe(url, ["id"]).filter(id_is_even)) == list(range(0, 60, 2))
    assert ids(ParquetPipe(url, ["id"]).filter(is_even, "id")) == list(range(0, 60, 2))
    with pytest.raises(TypeError, match="has no len"):
        len(ParquetPipe(url, ["id"]).filter(id_is_even))


def test_map_and_collate_are_torchs(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).batch(20).map(id_only)
    assert list(pipe) == [list(range(start, start + 20)) for start in (0, 20, 40)]
    assert len(pipe) == 3
    assert list(ParquetPipe(url, ["id"]).take(2).collate(id_only)) == [0, 1]
    assert ids(ParquetPipe(url, ["id"]).take(2).map(is_even, "id", "even")) == [0, 1]


def test_after_batch_the_verbs_are_torchs(url: str) -> None:
    batched = ParquetPipe(url, ["id"]).batch(20)
    again = batched.batch(2)
    assert isinstance(again, Batcher)
    assert [[element["id"].tolist() for element in pair] for pair in again] == [
        [list(range(20)), list(range(20, 40))],
        [list(range(40, 60))],
    ]
    assert len(batched.batch(2, drop_last=True)) == 1
    shuffled = batched.shuffle(2)
    assert isinstance(shuffled, Shuffler)
    assert sorted(ids(shuffled)) == [list(range(start, start + 20)) for start in (0, 20, 40)]
    assert sorted(len(element["id"]) for element in batched.filter(lambda_free_last)) == [20]
    with pytest.raises(PipelineError, match=r"where\(\) must come before batch\(\)"):
        batched.filter(pc.field("id") > 3)
    with pytest.raises(PipelineError, match=r"shuffle\(\) must come before batch\(\)"):
        batched.shuffle(10, seed=1)


def lambda_free_last(element: dict[str, Any]) -> bool:
    return bool(element["id"][0] == 40)


def test_lists_of_rows_are_torchs_batches(url: str) -> None:
    chunks = list(ParquetPipe(url, ["id"]).batch(25, wrapper_class=list))
    assert [[row["id"].item() for row in chunk] for chunk in chunks] == [
        [*range(25)],
        [*range(25, 50)],
        [*range(50, 60)],
    ]


def test_torchs_own_verbs_are_there(url: str) -> None:
    left, right = ParquetPipe(url, ["id"]).take(3), ParquetPipe(url, ["id"]).skip(57)
    assert [(a["id"].item(), b["id"].item()) for a, b in left.zip(right)] == [(0, 57), (1, 58), (2, 59)]
    assert ids(left.concat(right)) == [0, 1, 2, 57, 58, 59]


def test_two_iterators_of_one_pipe_are_independent(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).take(5)
    assert [(a["id"].item(), b["id"].item()) for a in pipe for b in pipe] == [
        (a, b) for a in range(5) for b in range(5)
    ]
    assert [(a["id"].item(), b["id"].item()) for a, b in zip(pipe, pipe, strict=True)] == [(n, n) for n in range(5)]
    mapped = pipe.map(id_only)
    assert [(a, b) for a in mapped for b in mapped] == [(a, b) for a in range(5) for b in range(5)]


def test_a_shuffle_without_a_seed_keeps_the_one_that_it_drew(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).shuffle(10)
    copied = pickle.loads(pickle.dumps(pipe))
    assert ids(pipe) == ids(copied)
    assert ids(ParquetPipe(url, ["id"]).shuffle(10)) != ids(ParquetPipe(url, ["id"]).shuffle(10))


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))])
def test_a_copy_continues_with_the_next_epoch_on_its_own(url: str, clone: Any) -> None:
    pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=3)
    list(pipe)
    copied = clone(pipe)
    assert copied.pipeline == pipe.pipeline
    assert ids(copied) == epoch_of(pipe, 1)


def test_an_endless_pipe_has_no_length(url: str) -> None:
    with pytest.raises(TypeError, match="repeats forever"):
        len(ParquetPipe(url).repeat())


def test_the_pipe_itself_has_the_state_of_its_latest_iterator(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=3).batch(7)
    assert pipe.state_dict()["consumed"] == 0
    for number, _ in enumerate(pipe):
        if number == 2:
            break
    fresh = ParquetPipe(url, ["id"]).shuffle(10, seed=3).batch(7)
    fresh.load_state_dict(pipe.state_dict())
    assert fresh.state_dict() == pipe.state_dict()
    assert ids(fresh) == epoch_of(pipe, 0)[3:]
    assert ids(fresh) == epoch_of(pipe, 1)
    assert fresh.state_dict() == {**pipe.state_dict(), "iteration": 2, "consumed": 0}  # a finished epoch: the next one


@pytest.mark.parametrize("derive", [lambda p: p.map(id_only), lambda p: p.filter(id_is_even).map(id_only)])
def test_elementwise_pipes_have_the_state_of_their_source(url: str, derive: Any) -> None:
    make = lambda: derive(ParquetPipe(url, ["id"]).shuffle(10, seed=3).take(24))  # noqa: E731
    whole = list(make())
    for steps in range(len(whole) + 1):
        pipe = make()
        iterator = iter(pipe)
        assert [next(iterator) for _ in range(steps)] == whole[:steps]
        resumed = iter(make())
        resumed.load_state_dict(iterator.state_dict())
        assert list(resumed) == whole[steps:]
        fresh = make()
        fresh.load_state_dict(pipe.state_dict())
        assert list(fresh) == whole[steps:]
    pipe = make()
    pipe.set_epoch(0)
    assert list(pipe) == whole


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda url: ParquetPipe(url, ["id"]).shuffle(11, seed=3).batch(7), "pipeline"),
        (lambda url: ParquetPipe(url, ["id"]).shuffle(10, seed=4).batch(7), "shuffle seed"),
        (
            lambda url: ParquetPipe(url, ["id"]).shuffle(10, seed=3).shard(2, 1, canonical_shards=2).batch(7),
            "canonical_shards",
        ),
    ],
)
def test_a_state_of_another_pipe_is_refused_with_the_difference(url: str, other: Any, difference: str) -> None:
    state = ParquetPipe(url, ["id"]).shuffle(10, seed=3).batch(7).state_dict()
    with pytest.raises(StateError, match=f"saved for a different {difference}"):
        other(url).load_state_dict(state)
    with pytest.raises(StateError, match=f"saved for a different {difference}"):
        iter(other(url)).load_state_dict(state)


def test_a_state_cannot_be_loaded_into_an_iterator_that_has_begun(url: str) -> None:
    iterator = iter(ParquetPipe(url, ["id"]))
    next(iterator)
    with pytest.raises(StateError, match="expected a fresh iterator"):
        iterator.load_state_dict(iterator.state_dict())
    for nonsense in ("nonsense", "[1]", 3):
        with pytest.raises(StateError, match="expected what state_dict"):
            iter(ParquetPipe(url, ["id"])).load_state_dict(nonsense)  # type: ignore[arg-type]


def test_a_closed_iterator_ends(url: str) -> None:
    iterator = iter(ParquetPipe(url, ["id"]))
    next(iterator)
    iterator.close()
    iterator.close()
    assert list(iterator) == []
    mapped = iter(ParquetPipe(url, ["id"]).map(id_only))
    mapped.close()
    assert list(mapped) == []


def test_any_pipe_of_urls_reads_parquet(url: str) -> None:
    pipe = IterableWrapper([url]).read_parquet(["id"], workers=1).where(pc.field("id") < 5).batch(3)
    assert isinstance(pipe, ParquetPipe)
    assert pipe.pipeline.workers == 1
    assert ids(pipe) == [[0, 1, 2], [3, 4]]
    assert ids(read_parquet(url).take(2)) == [0, 1]
    files = IterableWrapper([url]).list_files(masks="*.parquet", recursive=True)
    assert sorted(ids(files.read_parquet("id"))) == list(range(60))
    with pytest.raises(PipelineError, match="expected URLs or paths, got tuple"):
        IterableWrapper([(url, None)]).read_parquet()


def test_unbatch_takes_batch_back(url: str) -> None:
    rows = ParquetPipe(url, ["id"]).shuffle(10, seed=5)
    again = rows.batch(4).unbatch()
    assert [row["id"].item() for row in again] == [row["id"].item() for row in rows]
    assert again.pipeline == rows.pipeline
    assert len(DataLoader(again.batch(7), batch_size=None, num_workers=1)) == 9


def test_unbatch_of_anything_else_says_what_to_write(url: str) -> None:
    rows = ParquetPipe(url, ["id"])
    for pipe in (rows, rows.batch(4, drop_last=True), rows.batch(4).take(2)):
        with pytest.raises(PipelineError, match=r"expected a pipe whose last verb is batch\(n\).*before batch\(\)"):
            pipe.unbatch()
