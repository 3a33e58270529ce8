"""`Pipeline`: what is wanted, as one immutable value; every verb returns a new one.

It compares, hashes, prints, and goes to JSON (user functions as cloudpickle). Iterating it gives numpy rows or batches;
`ParquetDataset` and `ParquetPipe` carry one and hand the same elements to their framework.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from multiprocessing.context import get_spawning_popen
from typing import Any, Literal, overload

import numpy as np

from ..engine.run.selecting import select_rows
from ..engine.run.vocabularies import vocabulary_of
from ..errors import DatasetError, PipelineError
from ..layout.dataset import StoredDataset
from ..layout.files import FileListing
from ..layout.table import Table
from ..order.mixing import Stop, Weights, phases_of
from ..plan.mixed_plan import MixedPlan, Mixture
from ..plan.plan import BasePlan, Plan
from ..plan.stage_order import StageOrder, accepts, order_stages
from ..schema.element import Element
from ..schema.field import Unischema, UnischemaField
from ..schema.plain import integer, plain
from ..stages.base import Decision, Stage, drawn_seed, stage_from_json, with_canonical_shards, with_seed
from ..stages.functions import UserFunction
from ..stages.select import Select
from ..stages.shard import Even, Shard
from ..transport.served.address import ServerAddress
from ..transport.served.served_plan import ServedPlan, check_sendable
from .image_verbs import seed_or_drawn
from .iteration import IterationCounter, PipelineIterator, batch_to_numpy, rows_to_numpy
from .numbered import ElementForms, NumberedElements, reader_of
from .sources import Fields, Sources
from .verbs import Verbs

_LOGGER = logging.getLogger(__name__)
Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
EXECUTORS = ("threads", "sidecar")


class _Opened:
    """What the pipelines of one chain share: the dataset, opened when it is first needed."""

    def __init__(self) -> None:
        self.dataset: StoredDataset | None = None
        self.listing: FileListing | None = None  # of the process that this one was started by


@dataclass(frozen=True, init=False)
class Pipeline(Sources, Verbs):
    """Rows of a Parquet dataset, and what is to be done with them.

    Args:
        url_or_urls: a URL or local path of a directory or a Parquet file, or a list of them; or a pipeline.
        fields: names or regexes of the fields wanted; ``None`` = all. A `UnischemaField` with a codec says how its
            column is decoded, for instance JPEG bytes in a file without a schema of parquetry's.
        filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
        storage_options: options for an fsspec filesystem.
        workers: threads or processes that decode; ``None`` = one for each processor that this process may use.
        memory_limit: bytes of fetched data in flight; ``None`` = 1 GiB.
        executor: ``"threads"`` (this process) or ``"sidecar"`` (separate processes); ``None`` = threads, but the
            sidecar for pipelines with user functions.
        address: instead of a URL: ``unix:PATH``, ``tcp://127.0.0.1:PORT`` or a `ServerAddress`: the batches of a
            pipeline that a server makes; see ``docs/arrow-stream.md``.

    Raises:
        PipelineError: arguments out of range. Everything that needs the dataset is checked when it is first used.
    """

    urls: tuple[str, ...]
    stages: tuple[Stage, ...] = ()
    storage_options: tuple[tuple[str, Any], ...] = ()
    workers: int | None = None
    memory_limit: int | None = None
    executor: str | None = None
    filesystem: Any = field(default=None, hash=False)
    mixture: Mixture | None = None
    table: Table | None = None
    address: ServerAddress | None = None
    _opened: _Opened = field(default_factory=_Opened, compare=False, repr=False)
    _plans: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    _iterations: IterationCounter = field(default_factory=IterationCounter, compare=False, repr=False)

    def __init__(
        self,
        url_or_urls: Urls | Pipeline | None = None,
        fields: Fields = None,
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        workers: int | None = None,
        memory_limit: int | None = None,
        executor: str | None = None,
        address: object = None,
    ) -> None:
        workers, memory_limit = _checked_options(workers, memory_limit, executor)
        if url_or_urls is not None and address is not None:
            raise PipelineError("Pipeline: expected a URL, or address= of a server that has one, got both.")
        if address is not None and (filesystem is not None or storage_options):
            raise PipelineError(
                "Pipeline: expected no filesystem and storage_options; with address= the server has them."
            )
        served = None if address is None else ServerAddress.of(address)
        url_or_urls = url_or_urls if served is None else served.url
        if isinstance(url_or_urls, Pipeline):
            if filesystem is not None or storage_options:
                raise PipelineError("Pipeline: a pipeline that is given has its own filesystem and storage_options.")
            given = url_or_urls if fields is None else url_or_urls.select(*_fields(fields))
            options = {"workers": workers, "memory_limit": memory_limit, "executor": executor}
            _copy(given.with_options(**{name: value for name, value in options.items() if value is not None}), self)
            return
        values = {
            "urls": _as_urls(url_or_urls, local=filesystem is None and served is None),
            "stages": () if fields is None else (Select.of(_fields(fields)),),
            "storage_options": tuple(sorted((storage_options or {}).items())),
            "workers": workers,
            "memory_limit": memory_limit,
            "executor": executor,
            "filesystem": filesystem,
            "mixture": None,
            "table": None,
            "address": served,
            "_opened": _Opened(),
            "_plans": {},
            "_iterations": IterationCounter(),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _over(
        cls,
        url: str,
        table: Table | None,
        fields: Fields,
        options: Mapping[str, Any],
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Pipeline:
        made = cls(url, fields, filesystem=filesystem, storage_options=storage_options, **options)
        return made._replace(table=table)

    # --- copies with something else ---

    def shard_given_later(
        self, even: Even = "none", canonical_shards: int | None = None, policy: str = "global"
    ) -> Pipeline:
        """As `shard`, with a single part where the sidecar's request will say how many there are and which is wanted.

        Such parts are put together again in one graph, not dealt to ranks: no row is repeated unless asked for.
        """
        return self._with_stage(Shard.of(1, 0, even, canonical_shards, policy))

    def with_options(self, **options: Any) -> Pipeline:
        """A copy with other ``workers``, ``memory_limit`` or ``executor``."""
        known = {"workers", "memory_limit", "executor"}
        if options.keys() - known:
            raise PipelineError(f"with_options: expected {sorted(known)}, got {sorted(options.keys() - known)}.")
        merged = {name: getattr(self, name) for name in known} | options
        merged["workers"], merged["memory_limit"] = _checked_options(**merged)
        return self._replace(**merged)

    def with_urls(self, url_or_urls: Urls) -> Pipeline:
        """A copy that reads other files in the same way.

        Raises:
            PipelineError: a mix, a table, or a pipeline that is served.
        """
        self.check_movable()
        urls = _as_urls(url_or_urls, local=self.filesystem is None)
        return self._replace(urls=urls, _opened=_Opened())

    def check_movable(self) -> Pipeline:
        """This pipeline, if it reads the files that its URLs name and nothing else."""
        others = {"a mix": self.mixture, "a table": self.table, "one that is served": self.address}
        for what, value in others.items():
            if value is not None:
                raise PipelineError(f"other URLs for a pipeline: expected a pipeline over files, got {what}.")
        return self

    def with_stages(self, stages: Sequence[Stage]) -> Pipeline:
        """A copy with other stages."""
        order_stages(stages, mixed=self.mixture is not None)
        return self._replace(stages=tuple(stages))

    @property
    def drawn_seed(self) -> int | None:
        """The seed that was drawn because nobody gave one (see `shuffle`, `mix`); ``None`` if all were given."""
        if self.mixture is not None:
            return self.mixture.drawn_seed
        if self.address is not None:
            return self.plan().seed if self.plan().seed_is_drawn else None
        shuffle = order_stages(self.stages).shuffle
        return drawn_seed(self.stages) if shuffle is None else shuffle.drawn_seed

    def with_seed(self, seed: int) -> Pipeline:
        """A copy whose shuffle has this seed; of a mix, one whose drawn seeds follow it."""
        if self.mixture is not None:
            return self._replace(mixture=self.mixture.with_drawn_seed(seed))
        if self.address is not None:
            return self._replace(address=replace(self.address, seed=seed))
        return self.with_stages(with_seed(self.stages, seed))

    def with_canonical_shards(self, count: int) -> Pipeline:
        """A copy in which a shard without ``canonical_shards`` has this many."""
        return self.with_stages(with_canonical_shards(self.stages, count))

    def accepts(self, verb: str) -> bool:
        """Whether the verb may follow here."""
        plan = None if self.address is None else self.plan()
        if isinstance(plan, ServedPlan):
            return verb in plan.accepts
        return accepts(self.stages, verb, mixed=self.mixture is not None)

    # --- what it gives ---

    @property
    def dataset(self) -> StoredDataset:
        """The stored dataset; opened when first used, and shared by the pipelines derived from this one."""
        if self.mixture is not None:
            result: StoredDataset = self.mixture.sources[0].dataset
            return result
        if self.address is not None:
            raise PipelineError(
                f"Pipeline(address={self.address.url!r}): expected what needs no dataset, got dataset or schema, "
                "which only the server has. element says what arrives, explain() what the server reads."
            )
        if self._opened.dataset is None:
            self._opened.dataset = StoredDataset(
                self.urls,
                filesystem=self.filesystem,
                storage_options=dict(self.storage_options),
                table=self.table,
                listing=self._opened.listing,
            )
        return self._opened.dataset

    @property
    def schema(self) -> Unischema:
        """The dataset's schema: every field that could be read (of a mix: that of its first source)."""
        return self.dataset.schema

    @property
    def leaves(self) -> list[Pipeline]:
        """The pipelines of one dataset each that a mix is made of; of another pipeline, itself."""
        return [self] if self.mixture is None else self.mixture.leaves

    @property
    def versions(self) -> list[str]:
        """For each dataset (several in a mix), which version of its files was found when it was listed."""
        return [source.dataset.version for source in self.leaves]

    def hold_to(self, versions: Sequence[str]) -> None:
        """Checks that this process found the files that another one had found before.

        Raises:
            DatasetError: files were added, removed or written since.
        """
        for source, expected in zip(self.leaves, versions, strict=True):
            if source.dataset.version != expected:
                raise DatasetError(
                    f"dataset {', '.join(source.urls)}: expected the files that were there when it was opened, found "
                    "others: some were added, removed or written since. Make the pipeline again to read them."
                )

    def plan(self) -> BasePlan:
        """The plan; made once."""
        if "plan" not in self._plans:
            self._plans["plan"] = self._make_plan()
        result: BasePlan = self._plans["plan"]
        return result

    def _make_plan(self) -> BasePlan:
        if self.address is not None:
            return ServedPlan(self.address, self.stages)
        if self.mixture is not None:
            return MixedPlan(self.mixture, self.stages)
        return Plan(self.dataset, self.stages, select_rows)

    @property
    def element(self) -> Element:
        """What one step gives: fields, dtypes, shapes."""
        return self.plan().element

    # --- verbs by the names that tf.data and torch have for them ---

    def map(
        self,
        fn: Callable[[Any], Any],
        output: Sequence[UnischemaField] | Unischema | None = None,
        remove: Sequence[str] = (),
        batched: bool | Literal["arrow"] = False,
        drops: bool = False,
    ) -> Pipeline:
        """`transform`: a function of rows (or batches), run where they are decoded.

        On `ParquetDataset` and `ParquetPipe`, ``map`` is the framework's own: a function of tensors, run where they
        arrive.
        """
        return self.transform(fn, output, remove, batched, drops)

    def filter(self, predicate: object, fields: Sequence[str] | None = None, *, batched: bool = False) -> Pipeline:
        """`where`: the rows for which an expression, DNF tuples, a column predicate, or a function of ``fields`` holds.

        ``filter`` of `ParquetDataset` and `ParquetPipe` takes these too; a function of whole elements is the
        framework's there.
        """
        return self.where(predicate, fields, batched=batched)

    def vocabulary(self, field: str) -> list[Any]:
        """The values of a field by their codes: the vocabulary that `encode` was given or has learned.

        Of a field that is not encoded, it is the one that would be learned: the sorted distinct values in the rows that
        the pipeline selects.

        Raises:
            FieldNotFoundError: no such field.
            PipelineError: a field that cannot be encoded; a mix, or a served pipeline.
        """
        plan = self.plan()
        if not isinstance(plan, Plan):
            raise PipelineError("vocabulary: expected a pipeline over one dataset, got a mix or a served one.")
        return list(vocabulary_of(plan, field).values.to_pylist())

    def __len__(self) -> int:
        """Elements in one iteration, exact.

        Raises:
            TypeError: the pipeline is endless, or a function that may leave rows out hides its length.
        """
        plan = self.plan()
        if plan.program.drops:
            raise TypeError("len(): unknown, because a transform with drops=True may leave rows out.")
        length = plan.length
        if length is None:
            raise TypeError("len(): the pipeline repeats for ever; give repeat() a count, or use take().")
        return length

    def __iter__(self) -> PipelineIterator:
        """Rows (or batches) as numpy; each ``iter()`` is the next epoch of the shuffle."""
        return PipelineIterator(self, self._iterations.take(), self._iterations)

    # --- elements by number ---

    @overload
    def __getitem__(self, index: int) -> dict[Any, Any]: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> list[dict[Any, Any]]: ...

    def __getitem__(self, index: Any) -> Any:
        """Rows (or batches) by number, in the order of epoch 0, read without those before them.

            >>> int(drive[3]["id"]), [int(row["id"]) for row in drive[-2:]]
            (3, [38, 39])
            >>> [int(row["id"]) for row in drive.shuffle(40, seed=7)[[5, 0]]]
            [21, 30]

        Each is what ``list(pipeline)`` has there, random crops included; see `at_epoch`.

        Raises:
            IndexError: there is no such row.
            PipelineError: a served pipeline, or one with ``transform(drops=True)``, whose rows have no numbers.
        """
        return self.at_epoch(0)[index]

    def at_epoch(self, epoch: int) -> NumberedElements[dict[Any, Any]]:
        """The elements of the ``epoch``-th iterator by number: ``pipeline.at_epoch(2)[:10]``.

        Everything runs in this process, functions too. An element costs the row groups that it lies in; those read last
        are kept, up to ``memory_limit`` bytes (here ``None`` = 256 MiB).

        Raises:
            PipelineError: a number below 0; elements that have no numbers.
        """
        number = integer(epoch, least=0)
        if number is None:
            raise PipelineError(f"at_epoch: expected an integer >= 0, got {epoch!r}.")
        key = f"reader {self.memory_limit} {os.getpid()}"  # a forked child has no locks and threads of its parent's
        if key not in self._plans:
            forms = ElementForms(batch=batch_to_numpy, rows=rows_to_numpy, strict_nulls=False)
            self._plans[key] = reader_of(self, forms)
        return NumberedElements(self._plans[key], number)

    def head(self, count: int = 5) -> list[dict[Any, Any]]:
        """The first elements of epoch 0, fewer if there are not as many.

        Raises:
            PipelineError: a number below 0; elements that have no numbers.
        """
        return self.at_epoch(0)[: _count("head", count)]

    def sample(self, count: int, seed: int | None = None) -> list[dict[Any, Any]]:
        """``count`` different elements of epoch 0, drawn uniformly; the same ones for the same ``seed``.

        Raises:
            PipelineError: there are fewer; elements that have no numbers; a seed that is no integer.
        """
        chosen = plain(seed_or_drawn(seed)[0])
        if type(chosen) is not int:
            raise PipelineError(f"sample: expected an integer seed or None, got {seed!r}.")
        return self.at_epoch(0).sample(_count("sample", count), chosen)

    def explain(self) -> str:
        """The plan in words: files, row groups, what was pruned by what, bytes, rows, steps."""
        plan = None if self.address is None else self.plan()
        if isinstance(plan, ServedPlan):
            return plan.explain()
        from .explain import explain  # only when asked: it measures the shuffle

        return explain(self)

    # --- as a value ---

    def to_json(self) -> dict[str, Any]:
        """A JSON object with everything that another process needs.

        Raises:
            PipelineError: a function or filesystem that cannot be pickled.
        """
        return {
            "version": 1,
            "urls": list(self.urls),
            "stages": [stage.to_json() for stage in self.stages],
            "storage_options": dict(self.storage_options),
            "workers": self.workers,
            "memory_limit": self.memory_limit,
            "executor": self.executor,
            "filesystem": None if self.filesystem is None else UserFunction(_Constant(self.filesystem)).to_json(),
            "mixture": None if self.mixture is None else _mixture_to_json(self.mixture),
            "table": None if self.table is None else self.table.to_json(),
            "address": None if self.address is None else self.address.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pipeline:
        """The inverse of `to_json`."""
        if value.get("version") != 1:
            raise PipelineError(f"stored pipeline: expected version 1, got {value.get('version')!r}. Update parquetry.")
        stored = value.get("filesystem")
        pipeline = cls(
            value["urls"] if value.get("address") is None else None,
            address=value.get("address"),
            filesystem=None if stored is None else UserFunction.from_json(stored)(),
            storage_options=value["storage_options"],
            workers=value["workers"],
            memory_limit=value["memory_limit"],
            executor=value["executor"],
        )
        mixture, table = value.get("mixture"), value.get("table")
        return pipeline._replace(
            stages=tuple(stage_from_json(stage) for stage in value["stages"]),
            mixture=None if mixture is None else _mixture_from_json(mixture),
            table=None if table is None else Table.from_json(table),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        opened = [source._opened.dataset for source in self.leaves]
        starts_child = get_spawning_popen() is not None  # a child reads the versions that were planned here
        listings = [None if dataset is None or not starts_child else dataset.listing for dataset in opened]
        return _from_json, (self.to_json(), listings)

    def __str__(self) -> str:
        if self.mixture is not None:
            sources = ", ".join(str(source) for source in self.mixture.sources)
            shown = f"mix([{sources}], weights={self.mixture.weights}, stop={self.mixture.stop!r})"
        else:
            where = repr(self.urls[0] if len(self.urls) == 1 else list(self.urls))
            where = where if self.address is None else f"address={self.address.url!r}"
            shown = f"Pipeline({where})" if self.table is None else f"Pipeline({where}, {self.table})"
        return shown + "".join(f"\n  .{stage}" for stage in self.stages)

    def __repr__(self) -> str:
        return str(self)

    def _with_stage(self, stage: Stage) -> Pipeline:
        if self.address is not None:
            check_sendable(stage.verb)
        stages = (*self.stages, stage)
        order = order_stages(stages, mixed=self.mixture is not None)
        if stage.decides in (Decision.PART, Decision.ORDER, Decision.WEIGHTS):
            _warn_of_drawn_seed(order, self.mixture)
        return self._replace(stages=stages)

    def _replace(self, **changes: Any) -> Pipeline:
        result = object.__new__(Pipeline)
        for item in fields(self):
            object.__setattr__(result, item.name, changes.get(item.name, getattr(self, item.name)))
        if changes.keys() & {"urls", "stages", "mixture", "filesystem", "storage_options", "table", "address"}:
            object.__setattr__(result, "_plans", {})
        object.__setattr__(result, "_iterations", IterationCounter())
        return result


def mix(
    pipelines: Sequence[Any],
    weights: Weights | None = None,
    seed: int | None = None,
    stop: Stop = "first",
) -> Pipeline:
    """Rows of several pipelines in one deterministic, weighted order; see ``docs/mixing.md``.

        >>> low, high = drive.where(pc.field("id") < 20), drive.where(pc.field("id") >= 20)
        >>> [int(row["id"]) for row in mix([low, high], weights=[1, 3], seed=1).take(6)]
        [20, 21, 0, 22, 23, 24]
        >>> later = mix([low, high], weights=[(0, [1, 0]), (4, [1, 3])], seed=1)
        >>> [int(row["id"]) for row in later.take(8)]
        [0, 1, 2, 3, 20, 21, 22, 23]

    Args:
        pipelines: unbatched pipelines (or datasets and pipes that carry one) whose rows have equal fields; mixes too.
        weights: how often each is drawn, relative to the others; ``None`` = equally. A schedule ``[(0, [1, 1]),
            (10_000, [3, 1])]`` says from which row of the mix on (counted over all ranks, from 0 in each pass) which
            weights hold; in it a weight may be 0.
        seed: of the draws; ``None`` draws one here and keeps it. Shuffles of the pipelines that were given no seed
            follow the one that is drawn here, so that one number in a state brings all of them back.
        stop: ``"first"`` ends where a drawn pipeline has no more rows, ``"all"`` when every one is used up.

    Raises:
        PipelineError: batched pipelines, weights that do not fit.
    """
    sources = tuple(getattr(item, "pipeline", item) for item in pipelines)
    if any(isinstance(source, Pipeline) and source.address is not None for source in sources):
        raise PipelineError("mix: expected pipelines over files, got one that is served. Let the server serve the mix.")
    if not sources or not all(isinstance(source, Pipeline) for source in sources):
        raise PipelineError(f"mix: expected a list of pipelines, got {pipelines!r}.")
    if seed is not None and integer(seed) is None:
        raise PipelineError(f"mix: expected an integer seed or None, got {seed!r}.")
    mixture = Mixture(
        sources=sources,
        phases=phases_of(weights, len(sources)),
        seed=0 if seed is None else plain(seed),
        stop=stop,
        drawn=seed is None,
    )
    if mixture.has_drawn_seeds:
        mixture = mixture.with_drawn_seed(secrets.randbits(62))
        parts = (*sources, *mixture.leaves)
        orders = [order_stages(source.stages, mixed=source.mixture is not None) for source in parts]
        if any(order.shard is not None and order.shard.num_shards > 1 for order in orders):
            _warn("mix", mixture.drawn_seed)
    urls = [url for source in sources for url in source.urls]
    return Pipeline(urls, filesystem=sources[0].filesystem)._replace(
        mixture=mixture,
        workers=sources[0].workers,
        memory_limit=sources[0].memory_limit,
        executor=sources[0].executor,
    )


def _mixture_to_json(mixture: Mixture) -> dict[str, Any]:
    return {
        "sources": [source.to_json() for source in mixture.sources],
        "weights": mixture.weights,
        "seed": mixture.seed,
        "stop": mixture.stop,
        "drawn": mixture.drawn,
        "drawn_seed": mixture.drawn_seed,
    }


def _mixture_from_json(value: Mapping[str, Any]) -> Mixture:
    sources = tuple(Pipeline.from_json(source) for source in value["sources"])
    return Mixture(
        sources=sources,
        phases=phases_of(value["weights"], len(sources)),
        seed=value["seed"],
        stop=value["stop"],
        drawn=value["drawn"],
        drawn_seed=value["drawn_seed"],
    )


def _warn_of_drawn_seed(order: StageOrder, mixture: Mixture | None) -> None:
    if order.shard is None or order.shard.num_shards == 1:
        return
    if mixture is not None and mixture.drawn_seed is not None:
        _warn("mix", mixture.drawn_seed)
    elif order.shuffle is not None and order.shuffle.drawn:
        _warn("shuffle", order.shuffle.seed)
    elif order.shuffle is None and order.join is not None and order.join.drawn_seed is not None:
        _warn(order.join.verb, order.join.drawn_seed)


def _warn(verb: str, seed: int | None) -> None:
    _LOGGER.warning(
        "%s(seed=None) drew the seed %s in this process. Ranks that draw another one overlap: "
        "give all of them one seed.",
        verb,
        seed,
    )


class _Constant:
    """A callable that gives one value; lets a filesystem travel the way functions do."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __call__(self) -> Any:
        return self._value


def _count(verb: str, count: object) -> int:
    number = integer(count, least=0)
    if number is None:
        raise PipelineError(f"{verb}: expected an integer >= 0, got {count!r}.")
    return number


def _copy(source: Pipeline, target: Pipeline) -> None:
    for item in fields(source):
        object.__setattr__(target, item.name, getattr(source, item.name))


def _from_json(value: dict[str, Any], listings: Sequence[FileListing | None] = ()) -> Pipeline:
    pipeline = Pipeline.from_json(value)
    for source, listing in zip(pipeline.leaves, listings, strict=False):  # pickles of before have none
        source._opened.listing = listing
    return pipeline


def _fields(given: str | UnischemaField | Iterable[str | UnischemaField]) -> Iterable[str | UnischemaField]:
    return (given,) if isinstance(given, str | UnischemaField) else given


def _as_urls(url_or_urls: Urls | None, *, local: bool) -> tuple[str, ...]:
    """The URLs as texts; local paths are made absolute, so that they mean the same in every process."""
    if isinstance(url_or_urls, str | os.PathLike):
        url_or_urls = [url_or_urls]
    try:
        urls = tuple(os.fspath(url) for url in url_or_urls)  # type: ignore[union-attr]  # None is no URL either
    except TypeError as error:
        raise PipelineError(f"Pipeline: expected a URL, a path, or a list of them, got {url_or_urls!r}.") from error
    if not urls or not all(isinstance(url, str) for url in urls):
        raise PipelineError(f"Pipeline: expected a URL, a path, or a list of them, got {url_or_urls!r}.")
    if not local:
        return urls
    return tuple(url if "://" in url else os.path.abspath(os.path.expanduser(url)) for url in urls)


def _checked_options(workers: object, memory_limit: object, executor: object) -> tuple[int | None, int | None]:
    """``workers`` and ``memory_limit`` as plain integers."""
    for name, value in (("workers", workers), ("memory_limit", memory_limit)):
        if value is not None and integer(value, least=1) is None:
            raise PipelineError(f"Pipeline: expected {name} to be an integer >= 1 or None, got {value!r}.")
    if executor is not None and executor not in EXECUTORS:
        raise PipelineError(f"Pipeline: expected executor to be one of {EXECUTORS} or None, got {executor!r}.")
    return plain(workers), plain(memory_limit)
