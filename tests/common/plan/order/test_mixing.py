"""Which source's row comes next in a mix: a loop over rows agrees with the blocks of draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.base.errors import PipelineError
from parquetry.common.plan.order import mixing
from parquetry.common.plan.order.mixing import SOURCE_SHIFT, MixView, Phase, phases_of
from parquetry.common.plan.order.permutations import raw_words
from parquetry.common.plan.order.positions import Epoch, RepeatView, RowView

BLOCK, MOST = 8, 120
weights = st.lists(st.sampled_from([0.0, 1.0, 2.5, 0.25]), min_size=3, max_size=3).filter(any)
lengths = st.lists(st.none() | st.integers(0, 30), min_size=3, max_size=3)


@st.composite
def schedules(draw: st.DrawFn) -> list[Phase]:
    """Draws phases that use each source at some time."""
    starts = [0, *sorted(draw(st.sets(st.integers(1, 40), max_size=3)))]
    phases = [Phase(start, tuple(draw(weights))) for start in starts]
    assume(all(any(phase.weights[source] for phase in phases) for source in range(3)))
    return phases


def rows_of(lengths: list[int | None], phases: list[Phase], stop: str, most: int) -> list[tuple[int, int]]:
    """Returns the source and its row for each row of a mix, at most ``most`` of them.

    With ``stop="all"``, an exhausted source leaves when it is drawn again, or immediately if it is not drawn before the
    next weights or the next block of draws.
    """
    taken, found = [0] * len(lengths), []

    def used_up(source: int) -> bool:
        return lengths[source] is not None and taken[source] == lengths[source]

    while len(found) < most:
        here = len(found)
        (_, now) = [phase for phase in phases if phase.start <= here][-1]
        ends = [phase.start for phase in phases if phase.start > here]
        left = [source for source in range(3) if stop == "first" or not used_up(source)]
        drawn = [source for source in left if now[source]] or left
        if not drawn:
            break
        shares = [now[source] or 1 for source in drawn]
        picks = [_picked(drawn, shares, number) for number in range(here, min([here - here % BLOCK + BLOCK, *ends]))]
        for place, pick in enumerate(picks):
            if used_up(pick):
                if stop == "first":
                    return found
                break
            found.append((pick, taken[pick]))
            taken[pick] += 1
            if stop == "all" and used_up(pick) and pick not in picks[place + 1 :]:
                break
    return found[:most]


def _picked(drawn: list[int], shares: list[float], number: int) -> int:
    word = int(raw_words(BLOCK, mixing._MIX_KEY, 5, number // BLOCK)[number % BLOCK])
    sought, place = word / 2**64 * sum(shares), 0
    while place < len(shares) - 1 and sought >= sum(shares[: place + 1]):
        place += 1
    return drawn[place]


@examples(40)
@given(lengths, schedules(), st.sampled_from(["first", "all"]), st.data())
def test_a_schedule_gives_what_a_loop_over_rows_gives(
    lengths: list[int | None], phases: list[Phase], stop: Any, data: st.DataObject
) -> None:
    views: list[RowView] = [
        RepeatView(Epoch(1, 1, "none"), None) if length is None else Epoch(length, 1, "none") for length in lengths
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_BLOCK", BLOCK)
        view = MixView(views, range(3), phases, 5, stop)
        expected = rows_of(lengths, phases, stop, MOST)
        assert len(expected) == min(MOST, math.inf if view.length is None else view.length)
        wanted = data.draw(st.permutations(range(len(expected))), "numbers")
        passes, index = view.resolve(np.array(wanted, np.int64))
    for number, turn, place in zip(wanted, passes.tolist(), index.tolist(), strict=True):
        which, row = expected[number]
        assert place >> SOURCE_SHIFT == which
        assert (turn if lengths[which] is None else place & ((1 << SOURCE_SHIFT) - 1)) == row


def test_a_mix_whose_last_weights_draw_endless_sources_alone_never_ends() -> None:
    endless = RepeatView(Epoch(1, 1, "none"), None)
    phases = [Phase(0, (1.0, 1.0)), Phase(9, (1.0, 0.0))]
    assert MixView([endless, Epoch(20, 1, "none")], range(2), phases, 1, "first").length is None
    assert (MixView([endless, Epoch(2, 1, "none")], range(2), phases, 1, "first").length or math.inf) < 10


@pytest.mark.parametrize(
    ("given", "phases"),
    [
        (None, [(0, (1.0, 1.0))]),
        ([1, 2], [(0, (1.0, 2.0))]),
        (np.array([1, 2], np.float32), [(0, (1.0, 2.0))]),
        ([(0, [1, 0]), (np.int64(5), np.array([0.5, 2]))], [(0, (1.0, 0.0)), (5, (0.5, 2.0))]),
        ([[0, [1, 3]]], [(0, (1.0, 3.0))]),
    ],
)
def test_weights_are_plain_numbers_however_they_are_given(given: Any, phases: Any) -> None:
    assert list(phases_of(given, 2)) == phases
    assert all(type(weight) is float for phase in phases_of(given, 2) for weight in phase.weights)


@pytest.mark.parametrize(
    "given",
    [[1], [1, 0], [1, -1], [1, math.nan], [1, math.inf], [1, "2"], "12", 3, {1: 2, 3: 4}, [1, None], [True, [1, 1]],
     [(0, [1, 1]), 5], [(0, [1])], [(0, [0, 0])], [(0, [1, -1])], [(0.5, [1, 1])], [(0, [1, 1], 3)], [(0, "ab")], []],
)  # fmt: skip
def test_weights_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(PipelineError, match="one positive weight for each of 2 pipelines, or a schedule of them"):
        phases_of(given, 2)


def test_a_schedule_begins_at_row_0_ascends_and_draws_every_source() -> None:
    for starts in ([1, 5], [0, 5, 5], [0, 6, 5], [-1, 0]):
        with pytest.raises(PipelineError, match="whose first row is 0 and whose rows ascend"):
            phases_of([(start, [1, 1]) for start in starts], 2)
    with pytest.raises(PipelineError, match=r"got only weights of 0 for \[1\]"):
        phases_of([(0, [1, 0]), (5, [2, 0])], 2)
