"""`WeightedSamplingReader`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common.compat.petastorm import WeightedSamplingReader, make_reader
from parquetry.common.compat.petastorm.ngram import NGram
from parquetry.common.compat.petastorm.predicates import in_lambda
from parquetry.common.compat.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from parquetry.common.compat.petastorm.unischema import Unischema, UnischemaField

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"
SCHEMA = Unischema("s", [UnischemaField("f1", np.int32, ())])


def mocks(count: int) -> list[Any]:
    return [ReaderMock(SCHEMA, lambda schema, number=number: {"f1": number}) for number in range(count)]


def drawn(weights: list[float], draws: int = 2000, seed: int | None = 1) -> list[int]:
    with WeightedSamplingReader(mocks(len(weights)), weights, seed=seed) as mixer:
        counts = Counter(next(mixer).f1 for _ in range(draws))
    return [counts[number] for number in range(len(weights))]


def test_a_reader_without_weight_is_never_drawn() -> None:
    assert drawn([1.0, 0.0]) == [2000, 0]
    assert drawn([0.0, 0.0, 1.0]) == [0, 0, 2000]
    assert drawn([0.0, 1.0, 0.0]) == [0, 2000, 0]


def test_readers_are_drawn_by_their_weights_however_they_are_scaled() -> None:
    for weights in ([0.1, 0.5, 0.4], [10, 50, 40]):
        np.testing.assert_allclose(drawn(weights), [200, 1000, 800], atol=100)


def test_a_seed_fixes_the_draws() -> None:
    assert drawn([1, 2, 3], seed=5) == drawn([1, 2, 3], seed=5)
    assert drawn([1, 2, 3], seed=5) != drawn([1, 2, 3], seed=6)


def test_it_ends_with_the_first_reader_that_has_no_more_rows() -> None:
    readers = [
        make_reader(str(REAL), schema_fields=["id"], num_epochs=None),
        make_reader(str(REAL), schema_fields=["id"], predicate=in_lambda(["id"], lambda id: id < 10)),
    ]
    with WeightedSamplingReader(readers, [0.5, 0.5], seed=3) as mixer:
        assert not mixer.last_row_consumed
        rows = list(mixer)
        assert mixer.last_row_consumed
        mixer.reset()
        assert next(mixer).id in range(60)
    assert 10 <= len(rows) < 60
    assert all(reader.stopped for reader in readers)
    assert mixer.stopped


def test_readers_must_agree() -> None:
    first, *others = [
        make_reader(str(REAL), schema_fields=fields)
        for fields in (
            ["id"],
            ["png"],
            NGram({0: ["id"]}, 1, "stamp_ms"),
            NGram({0: ["id"], 1: ["id"]}, 1, "stamp_ms"),
        )
    ]
    with pytest.raises(ValueError, match="should have the same schema"):
        WeightedSamplingReader([first, others[0]], [1, 1])
    with pytest.raises(ValueError, match="should have the same ngram"):
        WeightedSamplingReader([first, others[1]], [1, 1])
    with pytest.raises(ValueError, match="should have the same ngram"):
        WeightedSamplingReader([others[1], others[2]], [1, 1])


def test_arguments_are_checked() -> None:
    one, two = mocks(2)
    for readers, weights in [([one], [1]), ([one, two], [1])]:
        with pytest.raises(ValueError, match="expected two or more readers and a probability for each"):
            WeightedSamplingReader(readers, weights)
    for weights in ([0, 0], [-1, 2]):
        with pytest.raises(ValueError, match="expected probabilities >= 0"):
            WeightedSamplingReader([one, two], weights)


def test_a_mock_makes_rows_of_its_schema() -> None:
    mock = ReaderMock(Unischema("m", [UnischemaField("a", np.float32, (None, 2))]), schema_data_generator_example)
    with mock as reader:
        assert reader.fetch().a.shape == (10, 2)
        assert next(iter(reader)).a.dtype == np.float32
    with pytest.raises(ValueError, match="expected ngram=None"):
        ReaderMock(SCHEMA, schema_data_generator_example, ngram=1)
