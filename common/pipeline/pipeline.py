"""`Pipeline`: an immutable description of what to read and what to do with it; every verb returns a new one.

A pipeline can be compared, hashed, printed, and converted to JSON (user functions as cloudpickle). Iterating it yields
numpy rows or batches. `ParquetDataset` and `ParquetPipe` wrap one and pass the same elements to their framework.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np

from ..base.errors import DatasetError, PipelineError
from ..base.process.dataclass import dataclass
from ..base.process.forks import reading
from ..base.tracebacks import shortens
from ..dataset.dataset import StoredDataset
from ..engine.run.bad_rows import length_without_bad_rows
from ..engine.run.vocabularies import vocabulary_of
from ..parquet.checksums import Verify
from ..plan.mixed_plan import Mixture
from ..plan.options import OptionArguments, Options
from ..plan.order.mixing import Stop, Weights, phases_of
from ..plan.plan import BasePlan, Plan
from ..plan.stage_order import StageOrder, check_skippable, check_verb
from ..schema.element import Element
from ..schema.field import Unischema
from ..schema.plain import integer, is_iterable, plain
from ..schema.training_statistics import TrainingStatistics
from ..stages.base import Decision, FieldNames, Stage, listed, stage_from_json, with_streams
from ..stages.functions import UserFunction
from ..stages.recut import Recut
from ..stages.select import Select
from ..stages.shard import Even, Shard
from ..stages.take import Take
from ..storage.files import FileListing
from ..transport.served.address import ServerAddress
from .constructors import Constructors, Fields
from .counting import count_lengths
from .field_verbs import seed_or_drawn
from .fitting import fit
from .pipeline_iterator import ElementT, PipelineIterator, batch_to_numpy, rows_to_numpy
from .preprocessing import Preprocessing
from .random_access import ElementConverters, NumberedElements, reader_of
from .sources import Files, Mix, Served, Source, Urls, source_from_json
from .step_iterator import IterationCounter
from .verb_aliases import VerbAliases

if TYPE_CHECKING:
    from typing import Unpack

    from .statistics import Statistics

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, init=False)
class Pipeline(Constructors, VerbAliases, Generic[ElementT]):
    """A Parquet dataset and the chain of verbs applied to its rows.

        >>> batches = Pipeline(url, ["id", "speed"]).where(pc.field("speed") > 4).shuffle(16, seed=7).batch(8)
        >>> next(iter(batches))["id"].shape
        (8,)

    It is a value: each verb returns a new pipeline. Each new iterator is the next epoch.

    Args:
        url_or_urls: a URL or local path of a directory or a Parquet file, a pattern such as
            ``"data/2024-*.parquet"``, or a list of these; or a pipeline.
        fields: names or regexes of the fields to read; ``None`` = all. A `UnischemaField` declares how its
            column is decoded, for instance JPEG bytes in a file without a parquetry schema.
        filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
        storage_options: options for an fsspec filesystem.
        workers: number of threads or processes that decode; ``None`` = one per processor available to this process.
        memory_limit: bytes of fetched data in flight; ``None`` = 1 GiB. Larger row groups are read in slices, into
            temporary files.
        executor: ``"threads"`` (this process) or ``"sidecar"`` (separate processes); ``None`` = the sidecar if the
            pipeline has user functions, otherwise threads.
        verify: which page checksums to check: ``"written"`` (= ``None``), those that exist; ``"always"``, all, and a
            page without one is an error; ``"never"``, none.
        restarts: how many times in a row to restart a sidecar that died, see `Options`; ``None`` = 3.
        stall_timeout: seconds after which a sidecar process that makes no progress is replaced, see `Options`;
            ``None`` = never.
        max_value_bytes: the largest size of one value: an array, image, text, byte string or list. Arrays and images
            of variable shape may use 16 times this per field and batch; for other limits, see
            ``docs/damaged-files.md``. ``None`` = 1 GiB.
        on_error: what to do with a row that does not decode, or fails in a function: ``"raise"`` (default) raises the
            error at the row's position; ``"skip"`` leaves the row out and counts it, see ``docs/bad-rows.md``.
        max_errors: with ``"skip"``, how many rows of an epoch may fail: a number, or a fraction (0.0 to 1.0). Each rank
            and each loader worker counts its own rows.
        address: instead of a URL, the address of a server that makes the batches: ``unix:PATH``,
            ``tcp://127.0.0.1:PORT`` or a `ServerAddress`; see ``docs/arrow-stream.md``.

    Raises:
        PipelineError: an argument is out of range. Checks that need the dataset run when it is first used.
    """

    source: Source
    stages: tuple[Stage, ...] = ()
    options: Options = field(default_factory=Options)
    _plans: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    _iterations: IterationCounter = field(default_factory=IterationCounter, compare=False, repr=False)

    def __init__(
        self,
        url_or_urls: Urls | Pipeline | None = None,
        fields: Fields = None,
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        address: object = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        if url_or_urls is not None and address is not None:
            raise PipelineError("Pipeline: expected either a URL or address= of a server, got both.")
        if address is not None and (filesystem is not None or storage_options):
            raise PipelineError(
                "Pipeline: expected no filesystem or storage_options with address=. Set them on the server."
            )
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise PipelineError(
                f"Pipeline: expected storage_options to be a dict, got {type(storage_options).__name__}."
            )
        if isinstance(url_or_urls, Pipeline):
            if filesystem is not None or storage_options:
                raise PipelineError(
                    "Pipeline: expected no filesystem or storage_options with a pipeline, which has its own."
                )
            base = url_or_urls if fields is None else url_or_urls.select(*listed("select", fields))
            _copy(base.with_options(**Options.of(options).given()), self)
            return
        source = (
            Files.of(url_or_urls, filesystem, storage_options)
            if address is None
            else Served(address=ServerAddress.of(address))
        )
        self._set(source, _selected(fields), Options.of(options))

    def _set(self, source: Source, stages: tuple[Stage, ...], options: Options) -> None:
        values = {
            "source": source,
            "stages": stages,
            "options": options,
            "_plans": {},
            "_iterations": IterationCounter(),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _over(
        cls, source: Source, fields: Fields, options: Mapping[str, Any], stages: Sequence[Stage] = ()
    ) -> Pipeline[ElementT]:
        return cls._with(source, (*_selected(fields), *stages), Options.of(options))

    @classmethod
    def _with(cls, source: Source, stages: tuple[Stage, ...], options: Options) -> Pipeline[ElementT]:
        result = object.__new__(cls)
        result._set(source, stages, options)
        return result

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of everything that it reads."""
        return self.source.urls

    @property
    def address(self) -> ServerAddress | None:
        """The server that makes the elements, if any."""
        return self.source.server

    @property
    def workers(self) -> int | None:
        """See `Options.workers`."""
        return self.options.workers

    @property
    def memory_limit(self) -> int | None:
        """See `Options.memory_limit`."""
        return self.options.memory_limit

    @property
    def executor(self) -> str | None:
        """See `Options.executor`."""
        return self.options.executor

    @property
    def verify(self) -> Verify | None:
        """See `Options.verify`."""
        return self.options.verify

    @property
    def max_value_bytes(self) -> int | None:
        """See `Options.max_value_bytes`."""
        return self.options.max_value_bytes

    # --- modified copies ---

    def shard_given_later(
        self, even: Even = "none", canonical_shards: int | None = None, policy: str = "global"
    ) -> Pipeline[ElementT]:
        """Adds a placeholder shard; the request to the sidecar fills in number and index.

        Its shards are recombined in one graph, so by default no row is repeated.
        """
        return self._with_stage(Shard.of(1, 0, even, canonical_shards, policy))

    def with_options(self, **options: Unpack[OptionArguments]) -> Pipeline[ElementT]:
        """Returns a copy with other `Options`."""
        changes: dict[str, Any] = {"options": self.options.with_changes(options)}
        stored = {name: value for name, value in options.items() if name in ("verify", "max_value_bytes")}
        if stored:
            changes["source"] = self.source.reopened(stored)
        return self._replace(**changes)

    def with_urls(self, url_or_urls: Urls) -> Pipeline[ElementT]:
        """Returns a copy that reads other files in the same way.

        Raises:
            PipelineError: the pipeline is a mix, reads a table, or is served.
        """
        self.check_movable()
        return self._replace(source=self.source.with_urls(url_or_urls))

    def check_movable(self, what_for: str = "with_urls") -> Pipeline[ElementT]:
        """Returns this pipeline if it reads only the files named by its URLs; raises `PipelineError` otherwise."""
        if not self.source.movable:
            raise PipelineError(f"{what_for}: expected a pipeline over files, got {self.source.called}.")
        return self

    def with_stages(self, stages: Sequence[Stage]) -> Pipeline[ElementT]:
        """Returns a copy with other stages."""
        self.source.order(stages)
        return self._replace(stages=tuple(stages))

    @property
    def drawn_seed(self) -> int | None:
        """The seed that was drawn because you gave none (see `shuffle`, `mix`); ``None`` if you gave all of them."""
        return self.source.drawn_seed(self.stages, self.plan)

    def with_seed(self, seed: int) -> Pipeline[ElementT]:
        """Returns a copy whose shuffle has this seed; for a mix, a copy whose drawn seeds are derived from it."""
        source, stages = self.source.with_seed(seed, self.stages)
        return self._replace(source=source, stages=tuple(stages))

    def with_streams(self, count: int, recut: Recut | None) -> Pipeline[ElementT]:
        """Returns a copy in which a shard without ``canonical_shards`` has the streams of a state."""
        return self.with_stages(with_streams(self.stages, count, recut))

    def accepts(self, verb: str) -> bool:
        """Returns whether the verb may be called next.

        Raises:
            PipelineError: there is no such verb.
        """
        check_verb(verb)
        return self.source.accepts(verb, self.stages, self.options, self.plan)

    # --- dataset, plan and element ---

    @property
    def dataset(self) -> StoredDataset:
        """The stored dataset, opened on first use and shared by the pipelines derived from this one."""
        return self.source.open(self.options)

    @property
    def schema(self) -> Unischema:
        """The dataset's schema with every field that could be read; for a mix, the schema of its first source."""
        return self.dataset.schema

    @property
    def leaves(self) -> list[Pipeline[Any]]:
        """The pipelines over single datasets that make up a mix; for any other pipeline, just itself, as a list."""
        return [leaf for source in self.source.sources for leaf in source.leaves] or [self]

    @property
    def versions(self) -> list[str]:
        """For each dataset (several in a mix), the version that its files had when they were listed."""
        return self.source.versions(self.options)

    def require_versions(self, versions: Sequence[str]) -> None:
        """Checks that this process found the same files as another process did earlier.

        Raises:
            DatasetError: files were added, removed or written since.
        """
        for source, expected in zip(self.leaves, versions, strict=True):
            if source.dataset.version != expected:
                raise DatasetError(
                    f"dataset {', '.join(source.urls)}: expected the files that were there when it was opened, found "
                    "others: some were added, removed or written since. Create the pipeline again to read them."
                )

    def plan(self) -> BasePlan:
        """Returns the plan, which is made once."""
        if "plan" not in self._plans:
            with reading():
                self._plans["plan"] = self._make_plan()
        result: BasePlan = self._plans["plan"]
        return result

    def _make_plan(self) -> BasePlan:
        raising = self._replace(options=replace(self.options, on_error="raise", max_errors=None))
        plan = self.source.make_plan(self.stages, self.options, partial(count_lengths, raising))
        if self.options.skips:
            for part in (plan, *plan.parts):
                check_skippable(part.order)
        plan.skips = self.options.skips
        return plan

    @property
    def element(self) -> Element:
        """The fields, dtypes and shapes that one step returns."""
        return self.plan().element

    def vocabulary(self, field: str) -> list[Any]:
        """Returns the values of a field in the order of their codes: the vocabulary passed to or learned by `encode`.

        For a field that is not encoded, it is the vocabulary that ``encode`` would learn if it were called now: the
        sorted distinct values in the rows that the pipeline selects.

        Raises:
            FieldNotFoundError: there is no such field.
            PipelineError: the field cannot be encoded, or the pipeline is a mix or served.
        """
        plan = self.plan()
        if not isinstance(plan, Plan):
            raise PipelineError("vocabulary: expected a pipeline over one dataset, got a mix or a served one.")
        return list(vocabulary_of(plan, field).values.to_pylist())

    def fit(
        self,
        *names: FieldNames,
        categories: FieldNames = (),
        quantiles: int = 100,
        min_count: int = 1,
        max_size: int | None = None,
    ) -> TrainingStatistics:
        """Learns the mean, deviation, bounds and quantiles of numbers, and the vocabularies of texts and categories.

            >>> stats = drive.fit("speed", "drive")
            >>> stats["speed"].mean, stats["speed"].max, stats["speed"].nulls
            (10.0, 19.5, 8)
            >>> stats["drive"].values, stats["drive"].counts
            (('d0', 'd1'), (20, 20))

        It reads the fields as the pipeline delivers them, from exactly its rows: those that its filters, its split and
        ``take`` keep, of all ranks. So call it on the part for training, and pass the result to `standardize`, `clip`,
        `bucketize` and `encode` of every part. Shuffles and shards change nothing. The pass uses all `workers`, and
        bounded memory but for vocabularies. The result is kept on disk until the dataset, the pipeline or an argument
        changes, unless the pipeline has functions. It has `TrainingStatistics.to_json`.

        Args:
            names: names or regexes of fields of numbers, texts or byte strings.
            categories: names or regexes of further fields, whose integers are categories, not amounts.
            quantiles: how many equal parts the quantiles divide numbers into.
            min_count: how often a value must occur to be in a vocabulary.
            max_size: how many values a vocabulary keeps, the most frequent ones; ``None`` = all.

        Raises:
            PipelineError: there are no names, a field holds other types, or the rows are not the same in every epoch:
                call it before ``batch``, ``repeat``, windows and joins, and before ``take`` of shuffled rows.
            FieldNotFoundError: a name or regex matches nothing.
            DecodeError, TransformError: a value fails; the message names file and row.
        """
        return fit(self, names, categories, quantiles=quantiles, min_count=min_count, max_size=max_size)

    def __len__(self) -> int:
        """The exact number of elements in one iteration.

        Raises:
            TypeError: the pipeline is endless, or its length is unknown (so far) because a function or
                ``on_error="skip"`` may leave rows out.
        """
        return self.length_where(strict_nulls=False)

    def length_where(self, *, strict_nulls: bool) -> int:
        """Like ``len``; with ``strict_nulls``, rows with nulls count as bad rows, which ``on_error="skip"`` skips."""
        plan = self.plan()
        if plan.program.drops:
            raise TypeError("len(): unknown, because a transform with drops=True may leave rows out.")
        program = replace(plan.program, strict_nulls=strict_nulls)
        length = length_without_bad_rows(plan, program) if plan.skips else plan.length
        if length is None:
            raise TypeError("len(): the pipeline repeats forever. Give repeat() a count, or use take().")
        return length

    def __iter__(self) -> PipelineIterator[ElementT]:
        """Iterates rows (or batches) as numpy; each ``iter()`` starts the next epoch of the shuffle."""
        return PipelineIterator(self, self._iterations.take(), self._iterations)

    if TYPE_CHECKING:

        def as_tuple(self, *parts: object) -> Pipeline[Any]: ...

    def preprocessing(self, *names: FieldNames) -> Preprocessing:
        """Returns the work of the verbs on the values of a row, to apply it to rows that come from elsewhere.

            >>> serving = drive.standardize("speed", stats=drive.fit("speed")).preprocessing("speed")
            >>> [field.name for field in serving.inputs], serving.apply({"speed": 9.75})
            (['speed'], {'speed': np.float32(0.0)})

        A model server applies it to single rows or batches (`Preprocessing.apply`), without TensorFlow and PyTorch, and
        gets what the pipeline gives, to the bit. It travels as JSON (`Preprocessing.to_json`). Verbs that choose, order
        or batch rows play no part.

        Args:
            names: names or regexes of the fields that the model takes, as the pipeline calls them; by default, all.
                A row then needs only the stored fields that these come from, so leave labels out.

        Raises:
            PipelineError: the pipeline is a mix or served, forms windows or joins rows, draws random numbers, or has
                functions that leave rows out.
            FieldNotFoundError: a name or regex matches nothing.
        """
        return Preprocessing.of(self, names)

    # --- elements by number ---

    @overload
    def __getitem__(self, index: int) -> ElementT: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> list[ElementT]: ...

    def __getitem__(self, index: Any) -> Any:
        """Returns rows (or batches) by number, in the order of epoch 0, without reading those before them.

            >>> int(drive[3]["id"]), [int(row["id"]) for row in drive[-2:]]
            (3, [38, 39])
            >>> [int(row["id"]) for row in drive.shuffle(40, seed=7)[[5, 0]]]
            [21, 30]

        Each equals the element of ``list(pipeline)`` at that index, random crops included; see `at_epoch`.

        Raises:
            IndexError: there is no such row.
            PipelineError: the rows have no numbers: the pipeline is served, or has ``transform(drops=True)``.
        """
        return self.at_epoch(0)[index]

    def at_epoch(self, epoch: int) -> NumberedElements[ElementT]:
        """The elements of the ``epoch``-th iterator by number: ``pipeline.at_epoch(2)[:10]``.

        Everything runs in this process, including functions. Reading an element reads the row groups that contain it.
        The most recent ones are kept, up to ``memory_limit`` bytes (for this method, ``None`` = 256 MiB).

        Raises:
            PipelineError: ``epoch`` is below 0, or the elements have no numbers.
        """
        number = integer(epoch, least=0)
        if number is None:
            raise PipelineError(f"at_epoch: expected an integer >= 0, got {epoch!r}.")
        key = f"reader {self.memory_limit} {os.getpid()}"  # a forked child cannot use its parent's locks and threads
        if key not in self._plans:
            converters = ElementConverters(batch=batch_to_numpy, rows=rows_to_numpy, strict_nulls=False)
            self._plans[key] = reader_of(self, converters)
        return NumberedElements(self._plans[key], number)

    def head(self, count: int = 5) -> list[ElementT]:
        """Returns the first ``count`` elements of epoch 0, or all if there are fewer.

        Raises:
            PipelineError: ``count`` is below 0, or the elements have no numbers.
        """
        return self.at_epoch(0)[: _count("head", count)]

    def sample(self, count: int, seed: int | None = None) -> list[ElementT]:
        """Returns ``count`` different elements of epoch 0, drawn uniformly; the same ``seed`` draws the same ones.

        Raises:
            PipelineError: there are fewer elements, they have no numbers, or ``seed`` is not an integer.
        """
        chosen = plain(seed_or_drawn(seed)[0])
        if type(chosen) is not int:
            raise PipelineError(f"sample: expected an integer seed or None, got {seed!r}.")
        return self.at_epoch(0).sample(_count("sample", count), chosen)

    def describe(self, rows: int | None = None, seed: int = 0) -> Statistics:
        """Reads the rows and describes the values of each field: nulls, range, mean, lengths, frequent values.

            >>> drive.select("id", "drive").describe()
            field  dtype  nulls  values
            id     int64      0  0 ... 39, mean 19.5, deviation 11.543, median 19.5
            drive  text       0  2 distinct: d0 (20), d1 (20); length 2
            all 40 rows

        The result has these numbers, and more, as attributes (`Statistics`), and is a table in a notebook. The command
        `parquetry describe URL CHAIN --values` prints the same.

        Args:
            rows: the number of rows to sample at random; ``None`` = all.
            seed: the seed of the sample.

        Raises:
            PipelineError: the pipeline is batched, endless, a mix or served, or ``rows`` is below 1.
            DecodeError, DatasetError: rows cannot be read.
        """
        from .statistics import statistics_of  # it takes a while to load

        return statistics_of(self, rows, seed)

    def explain(self) -> str:
        """Returns the plan in words: files, row groups, what was pruned and why, bytes, rows, steps."""
        return self.source.explain(self)

    # --- as a value ---

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object with everything that another process needs to run the pipeline.

        Raises:
            PipelineError: a function or the filesystem cannot be pickled.
        """
        return {
            "version": 1,
            "urls": list(self.urls),
            "stages": [stage.to_json() for stage in self.stages],
            "storage_options": dict(self.source.storage_options),
            **asdict(self.options),
            "filesystem": None if self.source.filesystem is None else _filesystem_to_json(self.source.filesystem),
            **self.source.describe(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pipeline[ElementT]:
        """The inverse of `to_json`."""
        if not isinstance(value, Mapping) or "version" not in value:
            raise PipelineError(f"stored pipeline: expected what to_json() returned, got {value!r}.")
        if value["version"] != 1:
            raise PipelineError(f"stored pipeline: expected version 1, got {value['version']!r}. Update parquetry.")
        stored = value.get("filesystem")
        filesystem = None if stored is None else _filesystem_from_json(stored)
        return cls._with(
            source_from_json(value, filesystem, Pipeline.from_json),
            tuple(stage_from_json(stage) for stage in value["stages"]),
            Options.of({option.name: value.get(option.name) for option in fields(Options)}),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        starts_child = get_spawning_popen() is not None  # a child process reads the file versions listed here
        listings = [leaf.source.listing if starts_child else None for leaf in self.leaves]
        return _from_json, (self.to_json(), listings)

    def __str__(self) -> str:
        return str(self.source) + "".join(f"\n  .{stage}" for stage in self.stages)

    def __repr__(self) -> str:
        return str(self)

    def _with_stage(self, stage: Stage) -> Pipeline[ElementT]:
        self.source.check_verb(stage.verb)
        stages = (*self.stages, stage.after(self.stages))
        order = self.source.order(stages)
        if stage.decides in (Decision.PART, Decision.ORDER, Decision.WEIGHTS):
            _warn_of_drawn_seed(order, self.source)
        if stage.decides is Decision.CUT:
            _warn_of_changing_cut(stage, order, self.source)
        return self._replace(stages=stages)

    def _replace(self, **changes: object) -> Pipeline[ElementT]:
        result = object.__new__(Pipeline)
        for item in fields(self):
            object.__setattr__(result, item.name, changes.get(item.name, getattr(self, item.name)))
        if changes.keys() & {"source", "stages"} or result.options.skips != self.options.skips:
            object.__setattr__(result, "_plans", {})
        object.__setattr__(result, "_iterations", IterationCounter())
        return result


@shortens
def mix(
    pipelines: Sequence[Any],
    weights: Weights | None = None,
    seed: int | None = None,
    stop: Stop = "first",
) -> Pipeline:
    """Mixes the rows of several pipelines in one deterministic, weighted order; see ``docs/mixing.md``.

        >>> low, high = drive.where(pc.field("id") < 20), drive.where(pc.field("id") >= 20)
        >>> [int(row["id"]) for row in mix([low, high], weights=[1, 3], seed=1).take(6)]
        [20, 21, 0, 22, 23, 24]
        >>> later = mix([low, high], weights=[(0, [1, 0]), (4, [1, 3])], seed=1)
        >>> [int(row["id"]) for row in later.take(8)]
        [0, 1, 2, 3, 20, 21, 22, 23]

    Args:
        pipelines: unbatched pipelines (or datasets and pipes that wrap one) whose rows have the same fields; they may
            themselves be mixes.
        weights: how often each is drawn, relative to the others; ``None`` = equally. In a schedule ``[(0, [1, 1]),
            (10_000, [3, 1])]``, each pair gives the row of the mix at which its weights take effect (counted over all
            ranks, from 0 in each pass); in a schedule, a weight may be 0.
        seed: the seed of the draws; ``None`` picks a random seed now and stores it. Shuffles of the pipelines that have
            no seed follow the picked one, so that one number in a state restores all of them.
        stop: ``"first"`` ends when a drawn pipeline has no more rows, ``"all"`` when all are used up.

    Raises:
        PipelineError: a pipeline is batched, or the weights do not fit.
        SchemaError: later, when the mix is first used: the pipelines have other fields.
    """
    sources = tuple(getattr(item, "pipeline", item) for item in pipelines) if is_iterable(pipelines) else ()
    if any(isinstance(source, Pipeline) and source.source.served for source in sources):
        raise PipelineError("mix: expected pipelines over files, got a served one. Let the server serve the mix.")
    unordered = isinstance(pipelines, set | frozenset)  # each process would mix them in another order
    if unordered or not sources or not all(isinstance(source, Pipeline) for source in sources):
        raise PipelineError(f"mix: expected a list of pipelines, got {pipelines!r}.")
    if seed is not None and integer(seed) is None:
        raise PipelineError(f"mix: expected an integer seed or None, got {seed!r}.")
    if len({(source.options.on_error, source.options.max_errors) for source in sources}) > 1:
        raise PipelineError(
            "mix: expected pipelines with the same on_error and max_errors, got different ones. Set them on the mix: "
            "mix(...).with_options(on_error=...)."
        )
    mixture = Mixture(
        sources=sources,
        phases=phases_of(weights, len(sources)),
        seed=0 if seed is None else plain(seed),
        stop=stop,
        drawn=seed is None,
    )
    if mixture.has_drawn_seeds:
        mixture = mixture.with_drawn_seed(secrets.randbits(62))
        parts = (*sources, *(leaf for source in sources for leaf in source.leaves))
        orders = [part.source.order(part.stages) for part in parts]
        if any(order.shard is not None and order.shard.num_shards > 1 for order in orders):
            _warn("mix", mixture.drawn_seed)
    return Pipeline._with(Mix(mixture=mixture), (), sources[0].options)


def _warn_of_drawn_seed(order: StageOrder, source: Source) -> None:
    drawn = source.drawn_order(order)
    if drawn is not None and order.shard is not None and order.shard.num_shards > 1:
        _warn(*drawn)


def _warn_of_changing_cut(stage: Stage, order: StageOrder, source: Source) -> None:
    """Warns of the first ``take`` or ``skip`` of an order that changes: two such parts are no split of the rows.

    After ``repeat``, it sets the length of an epoch, which is no split either. A ``take`` of batches limits the steps,
    and ``take(1)`` is for a look; if such a call begins a split, the ``skip`` of the other part warns.
    """
    if isinstance(stage, Take) and (stage.count == 1 or order.batch is not None or order.makes_batches):
        return
    verb, changed = stage.verb, _changed_order(order, source)
    if changed is not None and sum(view.decides is Decision.CUT for view in order.views) == 1:
        cause, often = changed
        _LOGGER.warning(
            "%s() after %s() keeps other rows in each %s. As a split, it would train on rows that validate: write "
            'hash_split("id", [0.8, 0.2], 0) for one part and the same with 1 for the other, where "id" identifies a '
            "row. To keep the same rows, call %s() before %s()%s.",
            verb,
            cause,
            often,
            verb,
            cause,
            ", or give it a seed and reshuffle_each_iteration=False" if cause == "shuffle" else "",
        )


def _changed_order(order: StageOrder, source: Source) -> tuple[str, str] | None:
    """The verb that orders the rows, and how often it gives them another order; ``None`` = it does not, or never."""
    if any(view.decides is Decision.PASSES for view in order.views):
        return None
    if order.shuffle is not None:
        often = "epoch" if order.shuffle.reshuffle_each_iteration else "run" if order.shuffle.drawn else None
        return None if often is None else ("shuffle", often)
    if order.join is not None and order.join.decides is Decision.WEIGHTS:
        return order.join.verb, "epoch"
    changes = (_changed_order(each.source.order(each.stages), each.source) for each in source.sources)
    return next((change for change in changes if change is not None), None)


def _warn(verb: str, seed: int | None) -> None:
    _LOGGER.warning(
        "%s(seed=None) picked the random seed %s in this process. Pass the same seed= on all ranks: with different "
        "seeds, they read overlapping rows.",
        verb,
        seed,
    )


class _Constant:
    """A callable that returns one value, so that a filesystem can be pickled the way functions are."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __call__(self) -> Any:
        return self._value


def _filesystem_to_json(filesystem: object) -> dict[str, str]:
    try:
        return UserFunction(_Constant(filesystem)).to_json()
    except PipelineError as error:
        raise PipelineError(
            f"filesystem {type(filesystem).__qualname__}: cannot travel to another process: {error.__cause__!r}. "
            "Define its class in a module that can be imported there, without open files, locks and sessions, or use "
            "executor='threads'."
        ) from error.__cause__


def _filesystem_from_json(value: dict[str, str]) -> Any:
    try:
        return UserFunction.from_json(value)()
    except PipelineError as error:
        raise PipelineError(
            f"filesystem: cannot be loaded in another process: {error.__cause__!r}. Define its class in a module that "
            "can be imported there, or use executor='threads'."
        ) from error.__cause__


def _count(verb: str, count: object) -> int:
    number = integer(count, least=0)
    if number is None:
        raise PipelineError(f"{verb}: expected an integer >= 0, got {count!r}.")
    return number


def _selected(fields: Fields) -> tuple[Stage, ...]:
    return () if fields is None else (Select.of(fields),)


def _copy(source: Pipeline[Any], target: Pipeline[Any]) -> None:
    for item in fields(source):
        object.__setattr__(target, item.name, getattr(source, item.name))


def _from_json(value: dict[str, Any], listings: Sequence[FileListing | None] = ()) -> Pipeline:
    pipeline = Pipeline.from_json(value)
    for leaf, listing in zip(pipeline.leaves, listings, strict=False):  # pickles from older releases have none
        if listing is not None:
            leaf.source.adopt(listing)
    return pipeline
