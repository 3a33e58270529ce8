"""What a pipeline reads: `Files`, a `Snapshot` of a table, a `Mix` of pipelines, or what a server makes (`Served`).

A source is a value. Everything that depends on the kind of a source is a method here; pipelines add stages and options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..base.urls import url_without_secrets
from ..dataset.dataset import StoredDataset
from ..dataset.row_groups import MAX_VALUE_BYTES
from ..dataset.table import Table
from ..engine.run.selecting import CountLengths, select_rows
from ..parquet.checksums import VERIFY
from ..plan.mixed_plan import MixedPlan, Mixture
from ..plan.options import Options
from ..plan.order.mixing import phases_of
from ..plan.plan import BasePlan, Plan
from ..plan.stage_order import StageOrder, accepts, check_skippable, order_stages
from ..schema.plain import data_frame_kind
from ..stages.base import Stage, drawn_seed, with_seed
from ..stages.transform import TransformStep
from ..storage.files import FileListing
from ..storage.filesystem import local_path
from ..storage.patterns import pattern_of
from ..transport.served.address import ServerAddress
from ..transport.served.served_plan import ServedPlan, check_sendable

if TYPE_CHECKING:
    from .explain import Explained

Urls: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
PlanOf: TypeAlias = Callable[[], BasePlan]


class Source:
    """What a pipeline reads.

    Attributes:
        single: whether the rows are those of one dataset that this process opens.
        served: whether a server opens the files and makes the elements.
        mixed: whether the rows are drawn from other pipelines.
        movable: whether it reads exactly the files that its URLs name.
        called: what messages call it.
        executor: the only executor that it runs on; ``None`` = that of the options.
        urls: the URLs of everything that it reads.
    """

    single: ClassVar[bool] = False
    served: ClassVar[bool] = False
    mixed: ClassVar[bool] = False
    movable: ClassVar[bool] = False
    called: ClassVar[str]
    executor: ClassVar[str | None] = None
    urls: tuple[str, ...]

    @property
    def sources(self) -> tuple[Any, ...]:
        """The pipelines that the rows are drawn from."""
        return ()

    @property
    def server(self) -> ServerAddress | None:
        return None

    @property
    def filesystem(self) -> Any:
        """The file system to use instead of the URLs' own."""
        return None

    @property
    def storage_options(self) -> tuple[tuple[str, Any], ...]:
        """Options for an fsspec file system, as sorted pairs."""
        return ()

    @property
    def listing(self) -> FileListing | None:
        """The files of the dataset, once it is open."""
        return None

    def open(self, options: Options) -> StoredDataset:
        """Returns the stored dataset, opened on first use; for a mix, that of its first pipeline.

        Raises:
            PipelineError: only the server opens it.
        """
        raise NotImplementedError

    def make_plan(self, stages: Sequence[Stage], options: Options, count: CountLengths) -> BasePlan:
        """Returns a new plan for the stages over this source. ``count`` counts lengths that functions make."""
        raise NotImplementedError

    def explain(self, pipeline: Explained) -> str:
        """Returns the plan of a pipeline over this source in words."""
        raise NotImplementedError

    def versions(self, options: Options) -> list[str]:
        """Returns the version of each dataset (several in a mix) when its files were listed."""
        return [self.open(options).version]

    def describe(self) -> dict[str, Any]:
        """Returns the JSON members of a pipeline that tell its source, besides URLs and the file system."""
        return {"mixture": None, "table": None, "address": None}

    def adopt(self, listing: FileListing) -> None:
        """Uses the files that another process listed."""
        raise NotImplementedError

    def reopened(self, options: Mapping[str, Any]) -> Source:
        """Returns a copy for changed options of how stored values are read, some of which may be left out."""
        return self

    def with_urls(self, urls: Urls) -> Source:
        """Returns a copy that reads other files, if it is ``movable``."""
        raise NotImplementedError

    # --- verbs and seeds ---

    def order(self, stages: Sequence[Stage]) -> StageOrder:
        """Sorts the stages of a pipeline over this source; see `order_stages`."""
        return order_stages(stages, mixed=self.mixed)

    def accepts(self, verb: str, stages: Sequence[Stage], options: Options, plan: PlanOf) -> bool:
        """Returns whether a known verb may follow the stages."""
        return accepts(stages, verb, mixed=self.mixed, check=check_skippable if options.skips else None)

    def check_verb(self, verb: str) -> None:
        """Raises `PipelineError` for a verb that no pipeline over this source can have."""

    def drawn_seed(self, stages: Sequence[Stage], plan: PlanOf) -> int | None:
        """Returns the seed that was drawn because none was given."""
        shuffle = order_stages(stages).shuffle
        return drawn_seed(stages) if shuffle is None else shuffle.drawn_seed

    def drawn_order(self, order: StageOrder) -> tuple[str, int] | None:
        """Returns the verb that orders the rows by a drawn seed, and that seed."""
        if order.shuffle is not None:
            return ("shuffle", order.shuffle.seed) if order.shuffle.drawn else None
        drawn = None if order.join is None else order.join.drawn_seed
        return None if order.join is None or drawn is None else (order.join.verb, drawn)

    def with_seed(self, seed: int, stages: Sequence[Stage]) -> tuple[Source, Sequence[Stage]]:
        """Returns the source and the stages with a seed in place of those that were drawn."""
        return self, with_seed(stages, seed)

    def costs(self, plan: PlanOf) -> dict[str, Any]:
        """Returns which costs are known; see `base.metrics.loader_stats.Chain`."""
        made = plan()
        costly = any(each.storage.costly for part in made.parts for each in part.program.fields)
        programs = [made.program, *(part.program for part in made.parts)]
        rows = (step for part in made.parts for step in part.program.row_steps)
        steps = [*rows, *(step for program in programs for step in program.item_steps)]
        calls = {step.name: step.form for step in steps if isinstance(step, TransformStep)}
        functions = tuple(name for name, form in calls.items() if form == "row")
        batch_functions = tuple(name for name, form in calls.items() if form != "row")
        return {"remote": made.remote, "costly": costly, "functions": functions, "batch_functions": batch_functions}


class _Opened:
    """The dataset of a `Files`, shared by all pipelines of a chain."""

    def __init__(self, listing: FileListing | None = None) -> None:
        self.dataset: StoredDataset | None = None
        self.listing = listing  # made by the parent process


@dataclass(frozen=True, kw_only=True)
class Files(Source):
    """The files that URLs name."""

    single: ClassVar[bool] = True
    movable: ClassVar[bool] = True
    called: ClassVar[str] = "files"
    urls: tuple[str, ...]
    storage_options: tuple[tuple[str, Any], ...] = ()
    filesystem: Any = field(default=None, hash=False)
    _opened: _Opened = field(default_factory=_Opened, compare=False, repr=False)

    @classmethod
    def of(
        cls, urls: object, filesystem: object = None, storage_options: Mapping[str, Any] | None = None, **more: Any
    ) -> Files:
        """Returns the source of a URL, a path, or a list of them.

        Raises:
            PipelineError: ``urls`` is none of these.
        """
        return cls(
            urls=_as_urls(urls, local=filesystem is None),
            storage_options=tuple(sorted((storage_options or {}).items())),
            filesystem=filesystem,
            **more,
        )

    def open(self, options: Options) -> StoredDataset:
        if self._opened.dataset is None:
            self._opened.dataset = StoredDataset(
                self.urls,
                filesystem=self.filesystem,
                storage_options=dict(self.storage_options),
                table=self._table,
                listing=self._opened.listing,
                verify=options.verify or VERIFY[0],
                max_value_bytes=options.max_value_bytes or MAX_VALUE_BYTES,
            )
        return self._opened.dataset

    @property
    def _table(self) -> Table | None:
        return None

    @property
    def listing(self) -> FileListing | None:
        return None if self._opened.dataset is None else self._opened.dataset.listing

    def adopt(self, listing: FileListing) -> None:
        self._opened.listing = listing

    def reopened(self, options: Mapping[str, Any]) -> Files:
        return replace(self, _opened=_Opened(self.listing or self._opened.listing))

    def with_urls(self, urls: Urls) -> Files:
        return replace(self, urls=_as_urls(urls, local=self.filesystem is None), _opened=_Opened())

    def make_plan(self, stages: Sequence[Stage], options: Options, count: CountLengths) -> Plan:
        select = partial(select_rows, memory_limit=options.memory_bytes, count=count)
        return Plan(self.open(options), stages, select)

    def explain(self, pipeline: Explained) -> str:
        from .explain import explain_dataset  # imported on use: it also loads what measures the shuffle

        return explain_dataset(pipeline)

    def __str__(self) -> str:
        return f"Pipeline({self._shown_urls})"

    @property
    def _shown_urls(self) -> str:
        urls = list(map(url_without_secrets, self.urls))
        return repr(urls[0] if len(urls) == 1 else urls)


@dataclass(frozen=True, kw_only=True)
class Snapshot(Files):
    """The files of a snapshot of a table."""

    movable: ClassVar[bool] = False
    called: ClassVar[str] = "a table"
    table: Table

    @property
    def _table(self) -> Table:
        return self.table

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "table": self.table.to_json()}

    def __str__(self) -> str:
        return f"Pipeline({self._shown_urls}, {self.table})"


@dataclass(frozen=True, kw_only=True)
class Mix(Source):
    """Rows drawn from other pipelines."""

    mixed: ClassVar[bool] = True
    called: ClassVar[str] = "a mix"
    mixture: Mixture

    @property
    def sources(self) -> tuple[Any, ...]:
        return self.mixture.sources

    @property
    def urls(self) -> tuple[str, ...]:  # type: ignore[override]  # follows from the pipelines
        return tuple(url for each in self.sources for url in each.urls)

    @property
    def filesystem(self) -> Any:
        return self.sources[0].source.filesystem

    def open(self, options: Options) -> StoredDataset:
        dataset: StoredDataset = self.sources[0].dataset
        return dataset

    def versions(self, options: Options) -> list[str]:
        return [version for each in self.sources for version in each.versions]

    def describe(self) -> dict[str, Any]:
        mixture = {
            "sources": [each.to_json() for each in self.sources],
            "weights": self.mixture.weights,
            "seed": self.mixture.seed,
            "stop": self.mixture.stop,
            "drawn": self.mixture.drawn,
            "drawn_seed": self.mixture.drawn_seed,
        }
        return {**super().describe(), "mixture": mixture}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], pipeline: Callable[[Mapping[str, Any]], Any]) -> Mix:
        """The inverse of `describe`; ``pipeline`` reads one of the pipelines."""
        sources = tuple(map(pipeline, value["sources"]))
        mixture = Mixture(
            sources=sources,
            phases=phases_of(value["weights"], len(sources)),
            seed=value["seed"],
            stop=value["stop"],
            drawn=value["drawn"],
            drawn_seed=value["drawn_seed"],
        )
        return cls(mixture=mixture)

    def reopened(self, options: Mapping[str, Any]) -> Mix:
        sources = tuple(each.with_options(**options) for each in self.sources)
        return Mix(mixture=replace(self.mixture, sources=sources))

    def make_plan(self, stages: Sequence[Stage], options: Options, count: CountLengths) -> MixedPlan:
        return MixedPlan(self.mixture, stages)

    def explain(self, pipeline: Explained) -> str:
        from .explain import explain_mix  # imported on use: it also loads what measures the shuffle

        return explain_mix(pipeline, self.mixture)

    def drawn_seed(self, stages: Sequence[Stage], plan: PlanOf) -> int | None:
        return self.mixture.drawn_seed

    def drawn_order(self, order: StageOrder) -> tuple[str, int] | None:
        return None if self.mixture.drawn_seed is None else ("mix", self.mixture.drawn_seed)

    def with_seed(self, seed: int, stages: Sequence[Stage]) -> tuple[Mix, Sequence[Stage]]:
        return Mix(mixture=self.mixture.with_drawn_seed(seed)), stages

    def __str__(self) -> str:
        sources = ", ".join(map(str, self.sources))
        return f"mix([{sources}], weights={self.mixture.weights}, stop={self.mixture.stop!r})"


@dataclass(frozen=True, kw_only=True)
class Served(Source):
    """The elements that a server makes."""

    served: ClassVar[bool] = True
    executor: ClassVar[str | None] = "server"
    called: ClassVar[str] = "a served one"
    address: ServerAddress

    @property
    def urls(self) -> tuple[str, ...]:  # type: ignore[override]  # follows from the address
        return (self.address.url,)

    @property
    def server(self) -> ServerAddress:
        return self.address

    def open(self, options: Options) -> StoredDataset:
        raise PipelineError(
            f"Pipeline(address={self.address.url!r}): dataset and schema are not available, because only the "
            "server opens the files. Use element for the fields that you receive, and explain() for what the "
            "server reads."
        )

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "address": self.address.to_json()}

    def make_plan(self, stages: Sequence[Stage], options: Options, count: CountLengths) -> ServedPlan:
        if options.skips:
            raise PipelineError(
                "on_error='skip': expected a pipeline over files, got a served one, whose rows have fixed "
                "places in the server's batches. Open the files here, or leave bad rows out with where()."
            )
        named = sorted(options.given().keys() & {"verify", "max_value_bytes"})
        if named:
            raise PipelineError(
                f"{', '.join(named)}: expected no such option with address=, because the server reads the files. "
                "Set it on the server."
            )
        return ServedPlan(self.address, stages)

    def explain(self, pipeline: Explained) -> str:
        return _served(pipeline.plan()).explain()

    def accepts(self, verb: str, stages: Sequence[Stage], options: Options, plan: PlanOf) -> bool:
        return verb in _served(plan()).accepts

    def check_verb(self, verb: str) -> None:
        check_sendable(verb)

    def drawn_seed(self, stages: Sequence[Stage], plan: PlanOf) -> int | None:
        return plan().seed if plan().seed_is_drawn else None

    def with_seed(self, seed: int, stages: Sequence[Stage]) -> tuple[Served, Sequence[Stage]]:
        return Served(address=replace(self.address, seed=seed)), stages

    def costs(self, plan: PlanOf) -> dict[str, Any]:
        return {}

    def __str__(self) -> str:
        return f"Pipeline(address={self.address.url!r})"


def source_from_json(
    value: Mapping[str, Any], filesystem: object, pipeline: Callable[[Mapping[str, Any]], Any]
) -> Source:
    """Returns the source that the JSON of a pipeline tells; ``pipeline`` reads a pipeline of a mix."""
    address, mixture, table = (value.get(name) for name in ("address", "mixture", "table"))
    if address is not None:
        return Served(address=ServerAddress.of(address))
    if mixture is not None:
        return Mix.from_json(mixture, pipeline)
    if table is None:
        return Files.of(value["urls"], filesystem, value["storage_options"])
    return Snapshot.of(value["urls"], filesystem, value["storage_options"], table=Table.from_json(table))


def _served(plan: BasePlan) -> ServedPlan:
    assert isinstance(plan, ServedPlan)
    return plan


def _as_urls(url_or_urls: Any, *, local: bool) -> tuple[str, ...]:
    """Converts the URLs to strings; makes local paths absolute, so that they mean the same in every process."""
    if isinstance(url_or_urls, str | os.PathLike):
        url_or_urls = [url_or_urls]
    if isinstance(getattr(getattr(url_or_urls, "pipeline", None), "source", None), Source):
        kind = type(url_or_urls).__name__
        raise PipelineError(
            f"Pipeline: expected a URL, a path, a list of them, or a Pipeline, got a {kind}. Pass .pipeline."
        )
    frame = data_frame_kind(url_or_urls)
    if frame is not None:
        instead = {
            "pandas": "Write from_pandas(frame)",
            "polars": "Write from_polars(frame)",
            "pyarrow": "Write the table to a file with pyarrow.parquet.write_table(table, path), and pass its path",
        }[frame]
        raise PipelineError(
            f"Pipeline: expected a URL, a path, or a list of them, got a {frame} {type(url_or_urls).__name__}. "
            f"{instead}."
        )
    if isinstance(url_or_urls, set | frozenset):  # in one order in every process: ranks may compare their URLs
        url_or_urls = sorted(url_or_urls, key=str)
    try:
        urls = tuple(os.fspath(url) for url in url_or_urls)
    except TypeError as error:
        raise PipelineError(f"Pipeline: expected a URL, a path, or a list of them, got {url_or_urls!r}.") from error
    if not urls or not all(isinstance(url, str) and url and "\0" not in url for url in urls):
        raise PipelineError(f"Pipeline: expected a URL, a path, or a list of them, got {url_or_urls!r}.")
    return tuple(_absolute(url) for url in urls) if local else urls


def _absolute(url: str) -> str:
    if "://" in url:
        return url
    slash = "/" if url.endswith("/") and pattern_of(url) is not None else ""  # such a pattern matches directories only
    return f"{local_path(url)}{slash}"
