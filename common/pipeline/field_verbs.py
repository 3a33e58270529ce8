"""`FieldVerbs`: the verbs that decide what a row holds, shared by all dataset classes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import DTypeLike

from ..base.errors import PipelineError
from ..schema.field import UnischemaField
from ..schema.plain import is_iterable
from ..schema.training_statistics import TrainingStatistics
from ..stages.as_tuple import AsTuple
from ..stages.base import EVERY_FIELD, FieldNames, Stage, listed, names_of, numeric_dtype, required_names
from ..stages.cast import Cast
from ..stages.decimals import Decimals
from ..stages.encode import Encode
from ..stages.functions import UserFunction, warn_of_generators
from ..stages.nested import Nested
from ..stages.nulls import Nulls
from ..stages.pack import Pack
from ..stages.pad import Pad
from ..stages.permute import Permute
from ..stages.rename import Rename
from ..stages.select import Select
from ..stages.tokenize import Tokenize, version_digest
from ..stages.transform import Transform

if TYPE_CHECKING:  # the standard library has it since Python 3.11
    from typing import Self


class FieldVerbs:
    """Verbs on fields. Select a field by its name, or by a regex that matches the whole name."""

    def _with_stage(self, stage: Stage) -> Self:
        """Returns a copy with one more stage. This is the only method that a dataset class must implement."""
        raise NotImplementedError

    def select(self, *names: FieldNames) -> Self:
        """Keeps only the fields that the names or regexes select, in schema order.

        A `UnischemaField` also overrides decoding: the column is decoded to the field's dtype and shape, with its codec
        or, if it has none, the stored one.

            >>> list(next(iter(drive.select("speed", "i.*"))))
            ['id', 'speed', 'image']

        Raises:
            PipelineError: no name is given, or a declared field does not match what earlier stages produce.
            FieldNotFoundError: a name or regex matches nothing (raised when the element is first needed).
            SchemaError: a field cannot describe its column (raised when the element is first needed).
        """
        return self._with_stage(Select.of(names))

    def rename(self, names: Mapping[str, str]) -> Self:
        """Renames fields for everything that follows; the values stay the same.

            >>> list(next(iter(drive.select("id", "speed").rename({"speed": "meters_per_second"}))))
            ['id', 'meters_per_second']
            >>> [int(row["number"]) for row in drive.rename({"id": "number"}).where(pc.field("number") < 3)]
            [0, 1, 2]

        Later stages know the fields by their new names only. Filters and windows still read them from storage.

        Args:
            names: ``{old: new}``, all renamed at once, so two fields can swap names. In windows with fields per offset,
                a field is renamed at every offset.

        Raises:
            PipelineError: no field is given, or a new name belongs to another field.
            FieldNotFoundError: no field has one of the old names (raised when the element is first needed).
        """
        return self._with_stage(Rename.of(names))

    def cast(self, dtype: DTypeLike, *names: FieldNames) -> Self:
        """Converts numeric and bool fields to another dtype, including inside lists and windows.

            >>> batch = next(iter(drive.cast(np.float16, "id", "points").cast("int32", "speed").skip(1).batch(3)))
            >>> batch["id"].dtype.name, batch["speed"].tolist()
            ('float16', [0, 1, 1])

        Conversion follows numpy's ``astype``: to integers, fractions are truncated; to a smaller float, values round to
        the nearest (infinity if too large); to bool, every number except 0 is ``True``.

            >>> next(iter(drive.cast("datetime64[D]", "id").skip(31)))["id"]
            np.datetime64('1970-02-01')

        Without a cast, times arrive as int64 counts of the field's own unit (see ``pipeline.element``).
        ``"datetime64[s]"`` and ``"timedelta64[ms]"`` return numpy times in that unit, and ``"datetime64"`` returns them
        in the field's unit. An integer ``n`` becomes ``n`` units. Casting to a coarser unit rounds down. TensorFlow and
        PyTorch have no time types, so they receive int64 in the new unit. Values that numpy would silently change are
        an error: an integer that does not fit, and NaN or infinity as an integer or bool. Nulls stay nulls.

        If the files store a field in different types, and this is the first verb on the field, each value is converted
        from the type of its own file.

        Args:
            dtype: a numpy dtype or its name: an integer, a float, bool, or a time.
            names: names or regexes; at least one, because a cast of everything would include ids and labels.

        Raises:
            PipelineError: the dtype is not supported, no field is given, or a field holds strings or bytes.
            DecodeError: a number does not fit; the message names field, file and row.
        """
        return self._with_stage(Cast.of(dtype, names))

    def encode(
        self,
        field: str | UnischemaField,
        vocabulary: Iterable[object] | None = None,
        unknown: int | Literal["error"] = "error",
        null: str | bytes | int | None = None,
        stats: TrainingStatistics | None = None,
    ) -> Self:
        """Replaces the strings, bytes or integers of a field with int64 codes, including inside lists and windows.

            >>> batch = next(iter(drive.encode("drive").encode("tags", ["t1", "t0"]).skip(18).batch(4)))
            >>> batch["drive"].tolist(), batch["tags"].tolist()
            ([0, 0, 1, 1], [[], [1], [1, 0], []])

        A code is a value's index in the vocabulary. If you give no vocabulary, it is learned: the sorted distinct
        values of the stored field in the rows that the pipeline selects up to this call, for all ranks and epochs. So
        call it before the verbs that split rows, and every part has the same codes:

            >>> coded = drive.encode("drive")
            >>> [len(coded.hash_split("id", [0.8, 0.2], part).vocabulary("drive")) for part in (0, 1)]
            [2, 2]

        Called after ``where``, ``hash_split``, ``take`` or ``skip``, it learns from the rows that these keep. Then pass
        the vocabulary of the training pipeline to the one for validation. A vocabulary is learned once, when iteration
        begins, and stored on disk; ``Pipeline.vocabulary(field)`` returns it.

        Nulls stay nulls, or are coded as another value is, one of the vocabulary or one that is added at its end:

            >>> names = drive.where(pc.field("id") < 3).encode("name", null="unknown")
            >>> names.vocabulary("name"), [int(row["name"]) for row in names]
            (['n1', 'n2', 'unknown'], [2, 0, 1])

        Args:
            vocabulary: the values in the order of their codes, each once. A set has no order and is refused.
            unknown: the code of values that are not in the vocabulary; ``"error"`` raises for them.
            null: the value that nulls stand for, also nulls inside lists. The vocabulary has it whether there are nulls
                or not, so parts of a split agree. ``None`` = nulls stay nulls.
            stats: what `Pipeline.fit` returned, instead of ``vocabulary``. Values that it left out as too rare are
                unknown.

        Raises:
            PipelineError: the field holds other types, the vocabulary does not fit the field, or the vocabulary would
                be learned from a field whose values an earlier stage changed.
            FieldNotFoundError: there is no such field (raised when the element is first needed).
            DecodeError: a value is not in the vocabulary; the message names field, file and row.
        """
        return self._with_stage(Encode.of(field, vocabulary, unknown, null, stats))

    def nulls(self, policy: str, *names: FieldNames, value: Any = None, elements: bool = False) -> Self:
        """Sets the policy for nulls in the fields that the names or regexes select (default: all nullable fields).

            >>> [str(row["name"]) for row in drive.nulls("fill", "name", value="?").take(3)]
            ['?', 'n1', 'n2']
            >>> [bool(row["name__valid"]) for row in drive.nulls("mask", "name").take(3)]
            [False, True, True]

        A null inside a list follows the policy of its field: ``"drop"`` leaves the row out, and ``"fill"`` replaces
        the null with ``value``. A mask of ``elements`` has the shape of the lists, here ``[[1, None], [], [3]]``:

            >>> batch = next(iter(gaps.nulls("mask", "codes", elements=True).batch(3)))
            >>> batch["codes"].tolist(), batch["codes__valid"].tolist()
            ([[1, 0], [], [3]], [[True, False], [], [True]])

        Nulls inside lists are handled while lists are read, so call it before other verbs on the field; only `select`,
        `rename` and `nested` may come first.
        ``"mask"`` turns a null list into an empty one, at any depth; ``"fill"`` raises for null lists, unless the field
        declares their length.

        Args:
            policy: ``"error"`` raises; ``"drop"`` leaves the row out; ``"fill"`` replaces nulls with ``value``;
                ``"mask"`` replaces them with zeros and adds the bool field ``<name>__valid``.
            elements: whether ``<name>__valid`` has one flag per list element instead of one per list.

        Raises:
            PipelineError: there is no such policy, the field cannot hold ``value``, ``elements`` is used on a field
                that is not a stored list, or there is a field ``<name>__valid`` already. Rename that one before.
            NullValueError: a null under ``"error"``; the message names file and row.
            DecodeError: a null inside a list without a policy; the message names file and row.
        """
        chosen = required_names("nulls", names) if names else EVERY_FIELD
        return self._with_stage(Nulls(policy, chosen, value, elements))  # type: ignore[arg-type]  # checked there

    def nested(self, *names: FieldNames) -> Self:
        """Delivers lists of lists of any depth whose lengths differ at every level.

            >>> batch = next(iter(boxes.nested("boxes").batch(2)))
            >>> batch["boxes"].tolist(), batch["boxes"][0][1]
            ([[[1, 2], [3]], [[], [4, 5, 6]]], array([3]))
            >>> batch["boxes"].values.tolist(), [offsets.tolist() for offsets in batch["boxes"].offsets]
            ([1, 2, 3, 4, 5, 6], [[0, 2, 4], [0, 2, 3, 3, 6]])

        Without it, lists of lists are arrays, and lists of different lengths in one row are an error. In TensorFlow, a
        batch is a `tf.RaggedTensor` that is ragged at each level, and a row has one level less. In PyTorch it is a
        `NestedTensors`, in numpy a `NestedArray`: the values, plus offsets for each level. A fixed-length axis
        inside the innermost variable level stays an array axis; one outside it becomes a ragged level.

        Functions of `transform` also receive these values (Arrow lists with ``batched="arrow"``), and return them or
        nested lists of arrays. Call it before other verbs on the field, except ``select``, ``rename`` and
        ``nulls("drop")``; call other `nulls` after it. `pad` and the image verbs accept arrays only.

        If a function makes the field, declare the field in its ``output`` and call `nested` afterwards:

            >>> cells = UnischemaField("cells", np.int64, (None, None))
            >>> rows = boxes.nested("boxes").transform(lambda row: {**row, "cells": [[1], [2, 3]]}, [cells])
            >>> next(iter(rows.nested("cells")))["cells"].tolist()
            [[1], [2, 3]]

        Raises:
            PipelineError: no name is given, a field is neither a stored list nor declared by a function, or its lists
                have a fixed length.
            FieldNotFoundError: a name or regex matches nothing (raised when the element is first needed).
            DecodeError: a null inside a list; the message names file and row.
        """
        return self._with_stage(Nested(required_names("nested", names)))

    def pad(self, *names: FieldNames, shape: Sequence[int | None] | None = None, value: object = None) -> Self:
        """Makes fields of variable shape dense, and adds their true lengths as ``<name>__length``.

            >>> batch = next(iter(drive.pad("points").batch(4)))
            >>> batch["points"].shape, batch["points__length"].tolist()
            ((4, 3, 3), [0, 1, 2, 3])

        Args:
            shape: the padded shape; ``None`` axes (or no shape) grow to the largest value of each batch.
            value: the value to pad with; 0 (or an empty string) by default.

        Raises:
            PipelineError: the shape does not fit the field's, it has ``None`` axes although there are no batches, or
                there is a field ``<name>__length`` already. Rename that one before.
            DecodeError: a value is larger than ``shape``; the message names file and row.
        """
        return self._with_stage(Pad(required_names("pad", names), shape, value))  # type: ignore[arg-type]  # converted there

    def fixed(self, *names: FieldNames, shape: Sequence[int]) -> Self:
        """Declares that every value of some fields has this shape.

            >>> one = drive.where(pc.bit_wise_and(pc.field("id"), 3) == 1).fixed("points", shape=(1, 3))
            >>> next(iter(one.batch(5)))["points"].shape
            (5, 1, 3)

        Raises:
            PipelineError: the shape does not fit the field's.
            DecodeError: a value has another shape; the message names file and row.
        """
        return self._with_stage(Pad(required_names("fixed", names), shape, None, False))  # type: ignore[arg-type]  # converted there

    def permute(self, *names: FieldNames, dims: Sequence[str]) -> Self:
        """Reorders the axes of fields that declare ``dims``, and of images, whose axes are H, W and C without it.

            >>> next(iter(drive.permute("image", dims=("C", "H", "W")).batch(8)))["image"].shape
            (8, 3, 4, 5)

        Raises:
            PipelineError: a field does not have these axes.
        """
        return self._with_stage(Permute(required_names("permute", names), dims))  # type: ignore[arg-type]  # converted there

    def decimals(self, form: str, *names: FieldNames) -> Self:
        """Sets how decimal fields are delivered: as exact ``"text"`` (default), ``"float64"`` (the nearest number), or
        ``"scaled"`` int64.

            >>> [int(row["price"]) for row in drive.decimals("scaled", "price").take(3)]  # in hundredths
            [0, 25, 50]

        Raises:
            PipelineError: a field is not a decimal, or an earlier stage already works on values.
        """
        return self._with_stage(Decimals(form, required_names("decimals", names)))  # type: ignore[arg-type]  # checked there

    def pack(self, name: str, fields: FieldNames, dtype: DTypeLike | None = None, *, keep: bool = False) -> Self:
        """Joins numeric fields (scalars or vectors of fixed length) into one vector field, ``[B, K]`` in a batch.

            >>> packed = drive.nulls("fill", "speed", value=0).pack("x", ["speed", "id"], np.float32)
            >>> next(iter(packed.batch(3)))["x"].tolist()
            [[0.0, 0.0], [0.5, 1.0], [1.0, 2.0]]

        Args:
            name: the name of the new field.
            fields: names or regexes, in the order wanted (fields that match one regex keep schema order).
            dtype: the dtype of the vector; by default, the smallest that holds all fields by numpy's promotion rules.
            keep: whether to keep the packed fields.

        Raises:
            PipelineError: a field is not a number or a vector of fixed length, or ``dtype`` cannot hold it.
            NullValueError, DecodeError: a null, or a number that ``dtype`` cannot hold; the message names file and row.
        """
        return self._with_stage(Pack.of(name, fields, dtype, keep=keep))

    def as_tuple(self, *parts: object) -> Self:
        """Returns rows (or batches) as tuples instead of dicts, for ``model.fit`` and training loops to unpack.

            >>> speed, number = next(iter(drive.as_tuple("speed", "id").skip(1).batch(2)))
            >>> speed.tolist(), number.tolist()
            ([0.5, 1.0], [1, 2])
            >>> inputs, number = next(iter(drive.as_tuple({"v": "speed", "who": "name"}, "id").skip(4)))
            >>> float(inputs["v"]), str(inputs["who"]), int(number)
            (2.0, 'n4', 4)

        All other fields are left out. You can batch, shuffle, shard and repeat tuples. Verbs that add, remove or rename
        fields, and functions that use field names, must come before it.

        Args:
            parts: field names, tuples of them, or dicts ``{key: name}``, to any depth; a name may occur twice. In
                windows with fields per offset, a name stands for the field at its only offset, or for ``{offset:
                value}`` if there are several. ``"1.name"`` is the field at offset 1.

        Raises:
            PipelineError: no name is given, or a part is not a name, tuple or dict.
            FieldNotFoundError: no field has the name (raised when the element is first needed).
        """
        return self._with_stage(AsTuple.of(parts))

    def tokenize(
        self,
        tokenizer: Callable[[str], Any] | object,
        field: str | UnischemaField,
        to: str = "tokens",
        *,
        dtype: DTypeLike = "int32",
        nulls: Literal["error", "empty"] = "error",
        version: str | int | None = None,
    ) -> Self:
        """Adds the token ids of a text, as lists that `concat`, `pack_rows` and `bucket` accept.

            >>> def letters(text):
            ...     return [ord(letter) - 96 for letter in text if letter.isalpha()]
            >>> named = drive.nulls("drop", "name").tokenize(letters, "drive")
            >>> next(iter(named))["tokens"].tolist()
            [4]
            >>> next(iter(named.concat(8, "tokens", separator=0)))["tokens"].tolist()
            [4, 0, 4, 0, 4, 0, 4, 0]

        The tokenizer runs in the workers, in each epoch. For verbs that need lengths before the order, they are counted
        in one pass over the rows at the first use, with a progress bar. They are stored on disk, like selections, so
        the next run starts immediately. After it, all is exact: equal steps on all ranks, ``len()``, and states.

        Args:
            tokenizer: a function of a text that returns a list or an array of integers; a ``tokenizers.Tokenizer``, a
                tokenizer of ``transformers`` (both add their special tokens), or a ``tiktoken.Encoding`` (whose
                ``encode_ordinary`` is used).
            field: the field of texts, which stays.
            to: the name of the new field, of shape ``(None,)``.
            dtype: the integer dtype of the ids.
            nulls: whether a null text is an error or has no tokens (``"empty"``).
            version: what identifies the tokenizer in stored lengths and in states; by default, a hash of its content
                or, for a function, of its code.

        Raises:
            PipelineError: the arguments do not fit, the field does not hold texts, or a field ``to`` exists; or, in
                an epoch, a text has another number of tokens than was counted.
            NullValueError: a text is null under ``"error"``; the message names file and row.
            TransformError: the tokenizer failed or returned other values; the message names file and row.
        """
        name = field.name if isinstance(field, UnischemaField) else field
        chosen = numeric_dtype("tokenize", dtype)
        return self._with_stage(Tokenize.of(tokenizer, name, to, chosen, nulls, version))

    def transform(
        self,
        fn: Callable[[Any], Any],
        output: UnischemaField | Iterable[UnischemaField] | None = None,
        remove: Sequence[str] = (),
        batched: bool | Literal["arrow"] = False,
        drops: bool = False,
        *,
        adds: FieldNames | None = None,
        lengths: bool = False,
        version: str | int | None = None,
        rng: bool = False,
        seed: int | None = None,
    ) -> Self:
        """Applies a function of numpy values (or Arrow batches) to every row (or batch), in the workers.

            >>> twice = UnischemaField("twice", np.int64)
            >>> doubled = drive.select("id").transform(lambda row: {"twice": row["id"] * 2}, [twice])
            >>> [(int(row["id"]), int(row["twice"])) for row in doubled.take(3)]
            [(0, 0), (1, 2), (2, 4)]
            >>> noisy = drive.select("id").transform(lambda row, rng: {"id": row["id"] + rng.integers(2)}, rng=True)
            >>> all(0 <= row["id"] - number <= 1 for number, row in enumerate(noisy))
            True

        Args:
            fn: row dict -> row dict; with ``batched=True`` or after ``batch()``, dict of arrays -> dict of arrays; with
                ``batched="arrow"``, ``pyarrow.RecordBatch`` -> the same.
            output: fields that the function adds or changes, with dtype and shape. Those that it does not return stay
                as they are; without ``output``, it returns every field. Returned values are checked: numpy arrays must
                have the dtype. Python numbers, tensors and Arrow columns are converted: floats may be rounded, but a
                number that would become another is refused.
            remove: fields to remove.
            drops: whether ``fn`` may return ``None`` to leave a row out; the pipeline's length is then unknown.
            adds: instead of ``output``, for a function that adds or changes nothing else. A name stands for the field
                that has it already; declare the others. Other values that the function returns are an error.
            lengths: whether `concat`, `pack_rows` and `bucket` may use the declared fields. Their lengths are counted
                in one pass over the rows at the first use, and stored on disk. The function must be deterministic:
                another length in a later pass is an error that names the row.
            version: with ``lengths``, what identifies the function in stored lengths and in states, in place of a hash
                of its code: give another one whenever it returns other lengths.
            rng: whether to call ``fn(row, rng)``, with a ``numpy.random.Generator`` for this row. Its numbers depend
                only on the seed, the pass over the data and the row: they are the same in every executor and after a
                resume, and differ between passes, and between copies of a row.
            seed: the seed of ``rng``; ``None`` follows the shuffle's seed, or picks a random seed now and stores it.

        Raises:
            PipelineError: the arguments contradict each other.
            TransformError: the function raised, or its result does not match ``output``; the message names file and
                row.
        """
        declared = None if output is None else tuple(output) if is_iterable(output) else (output,)
        added = None if adds is None else required_names("transform", adds)
        if adds is not None:
            if declared is not None:
                raise PipelineError("transform: expected output= or adds=, got both. Put all fields into adds=[...].")
            declared = tuple(item for item in listed("transform", adds) if isinstance(item, UnischemaField))
        if version is not None and not lengths:
            raise PipelineError("transform: expected version= only with lengths=True, got it without.")
        function = UserFunction(fn, None if version is None else version_digest("transform", version))
        warn_of_generators(
            "transform",
            fn,
            "Each process that runs it draws the same numbers from a copy of its own, and a resumed run draws others. "
            "Write transform(fn, rng=True), which calls fn(row, rng) with a generator.",
        )
        if seed is not None and not rng:
            raise PipelineError("transform: expected seed= only with rng=True, got it without. Write rng=True.")
        chosen, drawn = seed_or_drawn(seed) if rng else (0, False)
        removed = names_of("transform", remove)
        return self._with_stage(
            Transform(function, declared, removed, batched, drops, rng, chosen, drawn, added, lengths)
        )


def seed_or_drawn(seed: int | None) -> tuple[int, bool]:
    """Returns a seed, and whether this call drew it because none was given."""
    return (secrets.randbits(62), True) if seed is None else (seed, False)
