"""What to write for names of other libraries, and for names that are nearly ours.

`did_you_mean` knows the names for which there is a verb or an argument, and `instead_of` those for which there is
something else.
"""

from __future__ import annotations

from collections.abc import Iterable

_ELSEWHERE = {  # what pandas, polars, and the loaders of others call it: what it is called here
    "astype": "cast",
    "batcher": "batch",
    "bucket_by_sequence_length": "bucket",
    "bucketbatch": "bucket",
    "cast_column": "cast",
    "class_encode_column": "encode",
    "columns": "fields",
    "cur_shard": "index",
    "cycle": "repeat",
    "cycler": "repeat",
    "dense_to_ragged_batch": "batch",
    "drop": "select",
    "drop_columns": "select",
    "drop_last": "drop_remainder",
    "drop_nulls": "nulls",
    "dropna": "nulls",
    "element_spec": "element",
    "fields": "schema",
    "fill_null": "nulls",
    "fillna": "nulls",
    "filter": "where",
    "filter_rows": "where",
    "flip": "random_flip",
    "group_by_window": "bucket",
    "head": "take",
    "horizontal_flip": "random_flip",
    "limit": "take",
    "map": "transform",
    "map_batches": "transform",
    "map_dict": "transform",
    "mapper": "transform",
    "max_token_bucketize": "bucket",
    "num_workers": "workers",
    "padded_batch": "pad",
    "ragged_batch": "batch",
    "random_split": "hash_split",
    "rank": "index",
    "reader_pool_type": "executor",
    "rebatch": "batch",
    "rejection_resample": "balance",
    "remove_columns": "select",
    "rename_column": "rename",
    "rename_columns": "rename",
    "reservoir_sample": "sample",
    "schema_fields": "fields",
    "select_columns": "select",
    "shard_count": "num_shards",
    "shard_seed": "seed",
    "sharding_filter": "shard",
    "shuffle_buffer": "shuffle",
    "shuffle_buffer_size": "buffer_size",
    "sliding_window": "ngram",
    "snapshot": "cache",
    "split_by_node": "shard",
    "split_by_rank": "shard",
    "split_by_worker": "shard",
    "to_tuple": "as_tuple",
    "train_test_split": "hash_split",
    "unique": "vocabulary",
    "window": "ngram",
    "workers_count": "workers",
    "world_size": "num_shards",
}
_LENGTH = "len(...) counts its elements"
_LOOK = "element has the fields, dtypes and shapes, explain() shows the plan, and describe() what the values are"
_SHOW = "parquetry.plot(batch) draws a batch; a notebook shows the first rows of the dataset itself"
_IMAGES = "Write a function that changes the image, for transform(fn)"
_ORDER = "Rows come in the order of the files; `parquetry rewrite URL OUT --sort-by FIELD` sorts the files"
_AHEAD = "Batches are made ahead without it"
_TABLE = "Iterate it, or read the files with pyarrow.parquet.read_table(...)"
_BATCHES = "batch(n) makes batches without a function; transform(fn) after it changes them"
_CODEC = "Fields are decoded as the schema says; select(UnischemaField(...)) declares another codec, dtype or shape"
_EPOCHS = "Each iter(...) is the next epoch, of len(...) elements; for epochs of n elements, write repeat().take(n)"
_FORMS = "ParquetIterable gives torch tensors, ParquetDataset TensorFlow tensors, and Pipeline numpy arrays"
_ITERATE = "Iterate it: it gives rows, or batches after batch(n)"
_MIX = "parquetry.mix([a, b], weights=...) draws from several, and a list of URLs reads all of their files"
_ONE_EACH = "A row stays one row: leave batch() out, or write more rows with write_dataset(...)"
_ONE_ROW = "The fields of a row are in one dataset: join the tables before you write them"
_SKIP = "on_error='skip' leaves out rows that fail, and counts them"
_SLICE = "take(n) and skip(n) cut it, and Pipeline[10:20] has these elements"
_VERBS = "Call the verbs one after the other; transform(fn) runs your function"
_WRITE = "parquetry.write_dataset(url, schema, rows) writes rows, and `parquetry copy URL OUT` copies some"
_INSTEAD = {
    "apply": _VERBS,
    "as_numpy_iterator": _ITERATE,
    "batched": _ITERATE,
    "cardinality": _LENGTH,
    "choose_from_datasets": _MIX,
    "collate": _BATCHES,
    "collate_fn": _BATCHES,
    "collect": _TABLE,
    "color_jitter": _IMAGES,
    "column_names": _LOOK,
    "compose": _VERBS,
    "concatenate": _MIX,
    "concatenate_datasets": _MIX,
    "count": _LENGTH,
    "decode": _CODEC,
    "decode_column": _CODEC,
    "display": _SHOW,
    "dtypes": _LOOK,
    "features": _LOOK,
    "flat_map": _ONE_EACH,
    "flatmap": _ONE_EACH,
    "flatten": _ONE_EACH,
    "group_by": _TABLE,
    "groupby": _TABLE,
    "ignore_errors": _SKIP,
    "info": _LOOK,
    "inspect": _LOOK,
    "interleave": _MIX,
    "interleave_datasets": _MIX,
    "iter_batches": _ITERATE,
    "iter_rows": _ITERATE,
    "iter_tf_batches": _FORMS,
    "iter_torch_batches": _FORMS,
    "jitter": _IMAGES,
    "join": _TABLE,
    "len": _LENGTH,
    "length": _LENGTH,
    "make_reader": _ITERATE,
    "merge": _TABLE,
    "num_columns": _LOOK,
    "num_rows": _LENGTH,
    "numpy": _ITERATE,
    "order_by": _ORDER,
    "parallel_interleave": _MIX,
    "plot": _SHOW,
    "prefetch": _AHEAD,
    "prefetch_to_device": _AHEAD,
    "prefetcher": _AHEAD,
    "push_to_hub": _WRITE,
    "reduce": _TABLE,
    "rotate": _IMAGES,
    "sample_from_datasets": _MIX,
    "save_to_disk": _WRITE,
    "set_epoch": _EPOCHS,
    "set_format": _FORMS,
    "shape": _LOOK,
    "show": _SHOW,
    "show_batch": _SHOW,
    "size": _LENGTH,
    "skip_errors": _SKIP,
    "slice": _SLICE,
    "sort": _ORDER,
    "sort_by": _ORDER,
    "sort_values": _ORDER,
    "stats": "Its iterator has them: iterator = iter(...), and then iterator.stats()",
    "to_arrow": _TABLE,
    "to_dict": _TABLE,
    "to_iterable_dataset": _FORMS,
    "to_list": _ITERATE,
    "to_pandas": _TABLE,
    "to_parquet": _WRITE,
    "to_pytorch": _FORMS,
    "to_tf": _FORMS,
    "to_tf_dataset": _FORMS,
    "to_torch": _FORMS,
    "unbatch": _ONE_EACH,
    "unbatched": _ONE_EACH,
    "union": _MIX,
    "with_epoch": _EPOCHS,
    "with_format": _FORMS,
    "with_length": _EPOCHS,
    "write": _WRITE,
    "zip": _ONE_ROW,
    "zipper": _ONE_ROW,
}


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns `` Did you mean 'shuffle'?`` if a name is close to a known one, or is what other libraries call it;
    otherwise an empty string. Append it to a message.
    """
    from difflib import get_close_matches  # needed only for errors

    names = list(known)
    usual = _ELSEWHERE.get(str(name))
    same = [known for known in names if known.lower() == str(name).lower()]
    near = [usual] if usual in names else same or get_close_matches(str(name), names, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def instead_of(name: str) -> str:
    """Returns what to write instead of a name. Append it to a message; it is empty if the name is not known.

    >>> instead_of("count")
    ' len(...) counts its elements.'
    """
    return f" {_INSTEAD[name]}." if name in _INSTEAD else ""
