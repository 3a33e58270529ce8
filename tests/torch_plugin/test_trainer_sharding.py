"""What a dataset says of a trainer that deals its rows; tests/trainers runs the trainers themselves."""

from __future__ import annotations

import pytest

from parquetry.common import Pipeline
from parquetry.torch_plugin import trainer_sharding
from parquetry.torch_plugin.trainer_sharding import TrainerSharding


@pytest.mark.parametrize(
    ("processes", "dispatches", "is_stateful", "warns"),
    [(2, True, True, True), (1, True, True, False), (2, False, True, False), (2, True, False, False)],
)
def test_states_that_only_rank_0_knows_are_warned_of_once(
    url: str, caplog: pytest.LogCaptureFixture, processes: int, dispatches: bool, is_stateful: bool, warns: bool
) -> None:
    trainer_sharding._warn_of_save_state.cache_clear()
    sharding = TrainerSharding(
        dispatches=dispatches, collates=True, rows=4, processes=processes, is_stateful=is_stateful
    )
    for _ in range(2):
        sharding.check(Pipeline(url, ["id"]), 1, 0)
    assert ["accelerator.save_state() lets every rank write" in message for message in caplog.messages] == [
        True
    ] * warns
