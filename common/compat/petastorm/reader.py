"""`make_reader` and `make_batch_reader`, which return a `Reader`."""

from __future__ import annotations

import collections.abc
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...base.errors import PipelineError, SchemaError
from ...base.other_names import did_you_mean
from ...base.urls import url_without_secrets
from ...storage.whole_files import cache_root
from .dataset import PetastormDataset
from .errors import NoFieldsError
from .etl.dataset_metadata import open_dataset
from .loading import RowGroupLoader
from .ngram import NGram
from .planning import JobOrder, choose_rows
from .predicates import PredicateBase
from .reading import Reader
from .selectors import RowGroupSelectorBase
from .transform import TransformSpec, transform_schema
from .unischema import Unischema, UnischemaField, from_parquetry
from .windows import form_windows
from .workers_pool.process_pool import make_pool

__all__ = ["Reader", "make_batch_reader", "make_reader"]
NULL_CACHE = "null"
LOCAL_DISK_CACHE = "local-disk"
UNUSED_ARGUMENTS = {
    "pyarrow_serialize": False,
    "shard_seed": None,
    "cache_row_size_estimate": None,
    "cache_extra_settings": None,
    "hdfs_driver": "libhdfs3",
    "zmq_copy_buffers": True,
    "convert_early_to_numpy": False,
}
"""Arguments of Petastorm that have no meaning here, and their defaults."""
_past_warnings: set[str] = set()


def make_reader(
    dataset_url: str | Sequence[str],
    schema_fields: object = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    pyarrow_serialize: bool = False,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: TransformSpec | None = None,
    filters: object = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: object = None,
    convert_early_to_numpy: bool = False,
) -> Reader:
    """Opens a reader of single, decoded rows (or windows) of a dataset, as named tuples.

    Args:
        dataset_url: URL or path of a directory or file, or a list of files.
        schema_fields: fields, or regexes that match whole names, or an `NGram`; ``None`` for all fields.
        reader_pool_type: ``"thread"``, ``"process"``, or ``"dummy"`` (in the calling thread).
        workers_count: number of threads or processes.
        results_queue_size: maximum number of loaded row groups that wait to be read.
        seed: seed of all random orders; ``None`` draws one.
        shuffle_rows: whether to shuffle the rows (or windows) within each row group.
        shuffle_row_groups: whether to shuffle the row groups, in a new order for each epoch.
        shuffle_row_drop_partitions: number of parts into which each row group is divided; parts are read separately.
        predicate: decides which rows to keep.
        rowgroup_selector: decides, by the stored indexes, which row groups to read.
        num_epochs: number of passes over the data; ``None`` for an endless reader.
        cur_shard, shard_count: read only row groups ``i`` (of the whole dataset) with ``i % shard_count == cur_shard``.
        cache_type: ``"null"``, or ``"local-disk"`` to cache stored columns in ``cache_location``.
        cache_size_limit: maximum size of the cache in bytes.
        transform_spec: transforms each row after the predicate.
        filters: DNF tuples or a ``pyarrow.compute.Expression``; exactly the matching rows are kept.
        storage_options, filesystem: how to reach the files; see `Pipeline`.
        pyarrow_serialize, shard_seed, cache_row_size_estimate, cache_extra_settings, hdfs_driver, zmq_copy_buffers,
            convert_early_to_numpy: accepted but unused; a warning says so once.

    Raises:
        PipelineError: an argument is out of range (a ``ValueError``).
        NoFieldsError: no field matches ``schema_fields`` (a ``RuntimeError``).
        NoDataAvailableError: there are fewer row groups than shards.
        DatasetError: there is nothing to read at the URL (an ``OSError``).
    """
    return _reader(dataset_url, batched=False, zmq_copy_buffers=zmq_copy_buffers, **_reader_arguments(locals()))


def make_batch_reader(
    dataset_url_or_urls: str | Sequence[str],
    schema_fields: object = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: TransformSpec | None = None,
    filters: object = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: object = None,
    convert_early_to_numpy: bool = False,
) -> Reader:
    """Opens a reader of the stored columns of any Parquet dataset: one named tuple of arrays per row group.

    Nothing is decoded: images and ``.npy`` arrays are returned as bytes. The arguments are those of `make_reader`, with
    two differences. Transforms and predicates that you define work on a row group as a ``pandas.DataFrame``, and there
    are no windows. See `values.column_array` for the types of the arrays.

    Args:
        convert_early_to_numpy: accepted but unused.

    Raises:
        PipelineError: an argument is out of range, or is an `NGram`.
        NoFieldsError, NoDataAvailableError, DatasetError: as for `make_reader`.
    """
    return _reader(dataset_url_or_urls, batched=True, zmq_copy_buffers=zmq_copy_buffers, **_reader_arguments(locals()))


def _reader_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Warns of arguments without a meaning here. Returns the others, without the URL."""
    for name, default in UNUSED_ARGUMENTS.items():
        value = arguments.get(name, default)
        if value != default:
            reason = "was deprecated and will be removed in future versions." if name == "shard_seed" else ""
            _warn_once(name, f"{name} {reason or 'has no meaning in parquetry'}; the value {value!r} is not used.")
    return {name: value for name, value in list(arguments.items())[1:] if name not in UNUSED_ARGUMENTS}


def _reader(
    url: object,
    *,
    batched: bool,
    schema_fields: object,
    reader_pool_type: str,
    workers_count: int,
    results_queue_size: int,
    seed: int | None,
    shuffle_rows: bool,
    shuffle_row_groups: bool,
    shuffle_row_drop_partitions: int,
    predicate: PredicateBase | None,
    rowgroup_selector: RowGroupSelectorBase | None,
    num_epochs: int | None,
    cur_shard: int | None,
    shard_count: int | None,
    cache_type: str | None,
    cache_location: str | None,
    cache_size_limit: int | None,
    transform_spec: TransformSpec | None,
    filters: object,
    storage_options: Mapping[str, Any] | None,
    filesystem: object,
    zmq_copy_buffers: bool,
) -> Reader:
    _check_pool(reader_pool_type, workers_count, results_queue_size)
    kept = _cache(cache_type, cache_location, cache_size_limit)
    _check_order(num_epochs, shuffle_row_drop_partitions, seed)
    if batched and isinstance(schema_fields, NGram):
        raise PipelineError("make_batch_reader: expected fields, got an NGram. Use make_reader for windows.")
    dataset = open_dataset(url, storage_options=storage_options, filesystem=filesystem, physical=batched)
    if batched and dataset.is_petastorm:
        _warn_once(
            "batch_reader",
            "make_batch_reader returns the columns of this dataset as stored, with encoded values as bytes. "
            "Please use make_reader to read a dataset that declares a schema.",
        )
    dataset = _declaring(dataset, schema_fields)
    stored = from_parquetry(dataset.schema)
    storage, ngram = _storage_schema(dataset, stored, schema_fields)
    if transform_spec is not None and not hasattr(transform_spec, "edit_fields"):
        raise PipelineError(
            f"transform_spec: expected a TransformSpec, got {transform_spec!r}. Write TransformSpec(function)."
        )
    schema = storage if transform_spec is None else transform_schema(storage, transform_spec)
    if not schema.fields:
        raise NoFieldsError(_why_no_fields(dataset, storage))
    chosen, predicate = choose_rows(
        dataset,
        filters=filters,
        predicate=predicate,
        selector=rowgroup_selector,
        cur_shard=cur_shard,
        shard_count=shard_count,
    )
    if not chosen.of_shard().num_items:
        warnings.warn(
            "No matching data is available for loading after filters, rowgroup selector, predicates on partitions and "
            "sharding were applied.",
            UserWarning,
            stacklevel=3,
        )
    drawn = secrets.randbits(62) if seed is None else int(seed)
    loader = RowGroupLoader(
        dataset=dataset,
        fields=tuple(dataset.schema[name] for name in storage.fields),
        schema=schema,
        transform=transform_spec,
        predicate=predicate if ngram is None else None,
        ngram=ngram,
        cache=kept,
        seed=drawn if shuffle_rows else None,
        batched=batched,
    )

    def ordered() -> JobOrder:
        windows = None if ngram is None else form_windows(loader, chosen, predicate, ngram)
        return JobOrder(
            selection=chosen.of_shard(windows),
            parts=shuffle_row_drop_partitions,
            seed=drawn if shuffle_row_groups else None,
        )

    return Reader(
        loader,
        make_pool(reader_pool_type, workers_count, loader),
        ordered,
        num_epochs=num_epochs,
        look_ahead=workers_count + results_queue_size if reader_pool_type != "dummy" else 1,
        settings={
            "zmq_copy_buffers": zmq_copy_buffers,
            "reader_pool_type": reader_pool_type,
            "workers_count": workers_count,
        },
    )


def _storage_schema(
    dataset: PetastormDataset, stored: Unischema, schema_fields: object
) -> tuple[Unischema, NGram | None]:
    """Returns the part of the stored schema to read, and the windows if there are any."""
    ngram = schema_fields if isinstance(schema_fields, NGram) else None
    if ngram is not None:
        ngram.resolve_regex_field_names(stored)
        chosen: list[Any] = ngram.get_field_names_at_all_timesteps()
    elif schema_fields is None:
        _refuse_differing(dataset, [".*"])
        return _default_schema(dataset, stored, [".*"]), None
    elif isinstance(schema_fields, collections.abc.Iterable) and not isinstance(schema_fields, str | UnischemaField):
        chosen = list(schema_fields)
    else:
        raise PipelineError(
            "schema_fields: expected None, a list of fields or regular expressions, or an NGram, "
            f"got {schema_fields!r}."
        )
    patterns = [item for item in chosen if isinstance(item, str) and item not in stored.fields] if chosen else [".*"]
    named = {item if isinstance(item, str) else getattr(item, "name", None) for item in chosen}
    _refuse_differing(dataset, [*patterns, *(re.escape(name) for name in named if isinstance(name, str))])
    default = _default_schema(dataset, stored, patterns)
    known = [field for name, field in stored.fields.items() if name in default.fields or name in named]
    storage = Unischema(stored._name, known).create_schema_view(chosen) if chosen else default
    if not storage.fields:
        raise NoFieldsError(
            f"schema_fields: No fields matching the criteria {chosen} in the dataset {dataset.roots[0]}. "
            f"Fields are: {list(stored.fields)}.{''.join(did_you_mean(name, stored.fields) for name in chosen[:1])}"
            f"{_why_refused(dataset, chosen)}"
        )
    return storage, ngram


def _why_refused(dataset: PetastormDataset, chosen: Sequence[Any]) -> str:
    return "".join(f" {why}" for name, why in dataset.left_out.items() if name in chosen)


def _why_no_fields(dataset: PetastormDataset, storage: Unischema) -> str:
    if storage.fields:
        return "TransformSpec: expected at least one field to remain, got none."
    unread = sorted(dataset.unread_by_petastorm - set(dataset.left_out))
    reasons = [*dataset.left_out.values()]
    if unread:
        reasons.append(f"Petastorm does not read the types of {unread}: name them in schema_fields=[...] to read them")
    return (
        f"dataset {url_without_secrets(dataset.roots[0])}: expected at least one column that can be read, got none. "
        + " ".join(f"{reason.rstrip('.')}." for reason in reasons)
    )


def _declaring(dataset: PetastormDataset, schema_fields: object) -> PetastormDataset:
    """Returns the dataset with columns whose files differ in the types of the given fields."""
    items = schema_fields if isinstance(schema_fields, list | tuple) else ()
    fields = []
    for item in items:
        with suppress(SchemaError):  # the type of a field whose columns are alike is not used
            fields += [item.to_parquetry()] if isinstance(item, UnischemaField) else []
    declared = dataset.declaring(fields)
    assert isinstance(declared, PetastormDataset)
    return declared


def _refuse_differing(dataset: PetastormDataset, patterns: Sequence[str]) -> None:
    """Raises `SchemaError` if regexes match a column whose files have types that cannot become one. A column that a
    declared schema lacks has to be named.
    """
    for name, reason in dataset.refused.items():
        if re.escape(name) in patterns or (
            name not in dataset.not_added and any(re.fullmatch(pattern, name) for pattern in patterns)
        ):
            raise SchemaError(reason)


def _default_schema(dataset: PetastormDataset, stored: Unischema, patterns: Sequence[str]) -> Unischema:
    """Returns the fields that regexes can match: for plain Parquet files, only those of types that Petastorm reads."""
    unread = dataset.unread_by_petastorm
    omitted = [name for name in stored.fields if name in unread and any(re.fullmatch(item, name) for item in patterns)]
    if omitted:
        warnings.warn(
            f"dataset {url_without_secrets(dataset.roots[0])}: leaving out the columns {omitted}, because Petastorm "
            "does not read their types. Name them in schema_fields=[...] to read them.",
            UserWarning,
            stacklevel=5,
        )
    return Unischema(stored._name, [field for name, field in stored.fields.items() if name not in unread])


def _warn_once(key: str, text: str) -> None:
    if key not in _past_warnings:
        _past_warnings.add(key)
        warnings.warn(text, UserWarning, stacklevel=4)


def _check_pool(kind: object, workers: object, results_queue_size: object) -> None:
    if kind not in ("thread", "process", "dummy"):
        raise PipelineError(f"Unknown reader_pool_type: expected 'thread', 'process' or 'dummy', got {kind!r}.")
    for name, value in (("workers_count", workers), ("results_queue_size", results_queue_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PipelineError(f"{name}: expected an integer >= 1, got {value!r}.")


def _check_order(num_epochs: object, parts: object, seed: object) -> None:
    if num_epochs is not None and (not isinstance(num_epochs, int) or isinstance(num_epochs, bool) or num_epochs < 1):
        raise PipelineError(f"num_epochs: expected an integer >= 1 or None, got {num_epochs!r}.")
    if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
        raise PipelineError(f"shuffle_row_drop_partitions: expected an integer >= 1, got {parts!r}.")
    if seed is not None and not hasattr(seed, "__index__"):
        raise PipelineError(f"seed: expected an integer or None, got {seed!r}.")


def _cache(kind: object, location: str | None, limit_bytes: int | None) -> tuple[str, int | None] | None:
    if kind in (None, NULL_CACHE):
        return None
    if kind != LOCAL_DISK_CACHE:
        raise PipelineError(f"Unknown cache_type: expected '{NULL_CACHE}' or '{LOCAL_DISK_CACHE}', got {kind!r}.")
    return str(location) if location is not None else str(cache_root() / "petastorm"), limit_bytes
