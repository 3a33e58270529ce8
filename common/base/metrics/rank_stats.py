"""`RankStats`: the statistics of a loader on all ranks, and which rank waits the most."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import PipelineError
from ..process.dataclass import dataclass
from .loader_stats import LoaderStats


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStats:
    """What a loader did on each rank, as ``gather_stats`` of a plug-in returns it.

    If your ranks talk in another way, such as MPI, gather ``stats().scalars()`` yourself:

    >>> gathered = comm.allgather(loader.stats().scalars())  # doctest: +SKIP
    >>> RankStats(own=loader.stats(), rank=comm.rank, ranks=tuple(gathered)).slowest  # doctest: +SKIP
    3

    Attributes:
        own: this rank's stats.
        rank: this rank's number, from 0.
        ranks: each rank's `LoaderStats.scalars`.

    Raises:
        PipelineError: there is no such rank.
    """

    own: LoaderStats
    rank: int
    ranks: tuple[Mapping[str, float], ...]

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.ranks):
            raise PipelineError(f"RankStats: expected a rank below {len(self.ranks)}, got {self.rank}.")

    @property
    def wait_shares(self) -> tuple[float, ...]:
        """Each rank's share of the time that it waited for data, 0 to 1."""
        return tuple(scalars["wait_share"] for scalars in self.ranks)

    @property
    def slowest(self) -> int:
        """The rank that waited the largest share of its time. All others wait for it at the end of a step."""
        return max(range(len(self.ranks)), key=self.wait_shares.__getitem__)

    @property
    def verdict(self) -> str:
        """This rank's verdict."""
        return self.own.verdict

    @property
    def why(self) -> str:
        """The reason for this rank's verdict, and which rank waited the most."""
        return f"{self.own.why} Rank {self.slowest} waited the most: {self.wait_shares[self.slowest]:.1%} of its time."

    def scalars(self) -> dict[str, float]:
        """Returns this rank's numbers, the shares of waiting of the slowest rank, and each rank's share."""
        slowest = {name: value for name, value in self.ranks[self.slowest].items() if name.startswith("wait_share")}
        return {
            **self.own.scalars(),
            "slowest_rank": self.slowest,
            **{f"slowest_{name}": value for name, value in slowest.items()},
            **{f"wait_share_of_rank_{rank}": share for rank, share in enumerate(self.wait_shares)},
        }

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}: waited {share:.1%}{' (slowest)' if rank == self.slowest else ''}"
            for rank, share in enumerate(self.wait_shares)
        )
