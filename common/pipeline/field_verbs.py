"""`FieldVerbs`: the verbs that decide what a row holds, the same on `Pipeline` and on every face."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import DTypeLike

from ..schema.field import Unischema, UnischemaField
from ..stages.as_tuple import AsTuple
from ..stages.base import EVERY_FIELD, FieldNames, Stage, names_of, required_names
from ..stages.cast import Cast
from ..stages.decimals import Decimals
from ..stages.encode import Encode
from ..stages.functions import UserFunction
from ..stages.nested import Nested
from ..stages.nulls import Nulls
from ..stages.pack import Pack
from ..stages.pad import Pad
from ..stages.permute import Permute
from ..stages.rename import Rename
from ..stages.select import Select
from ..stages.transform import Transform

if TYPE_CHECKING:  # the standard library has it since Python 3.11
    from typing_extensions import Self


class FieldVerbs:
    """Verbs on fields; a field is chosen by its name, or by a regex that matches its name in full."""

    def _with_stage(self, stage: Stage) -> Self:
        """The same with one more stage: all that a face adds to the verbs."""
        raise NotImplementedError

    def select(self, *names: str | UnischemaField) -> Self:
        """Only the fields that the names or regexes select, in schema order.

        A `UnischemaField` with a codec also says how its column is decoded.

            >>> list(next(iter(drive.select("speed", "i.*"))))
            ['id', 'speed', 'image']

        Raises:
            PipelineError: no name.
            FieldNotFoundError: a name or regex that matches nothing (raised when the element is first needed).
        """
        return self._with_stage(Select.of(names))

    def rename(self, names: Mapping[str, str]) -> Self:
        """Other names for some fields, from here on; the values stay as they are.

            >>> list(next(iter(drive.select("id", "speed").rename({"speed": "metres_per_second"}))))
            ['id', 'metres_per_second']
            >>> [int(row["number"]) for row in drive.rename({"id": "number"}).where(pc.field("number") < 3)]
            [0, 1, 2]

        Every later stage knows the fields by their new names only; filters and windows still read them from storage.

        Args:
            names: ``{old: new}``, all renamed at once, so that two fields may swap their names. In windows with fields
                for each offset, a field is renamed at every offset.

        Raises:
            PipelineError: no field; a new name that another field has.
            FieldNotFoundError: an old name that no field has (raised when the element is first needed).
        """
        return self._with_stage(Rename.of(names))

    def cast(self, dtype: DTypeLike, *names: str) -> Self:
        """Numeric and bool fields in another dtype, also inside lists and windows.

            >>> batch = next(iter(drive.cast(np.float16, "id", "points").cast("int32", "speed").skip(1).batch(3)))
            >>> batch["id"].dtype.name, batch["speed"].tolist()
            ('float16', [0, 1, 1])

        As numpy's ``astype``: a fraction is cut off, a float rounds to the nearest of the new dtype (infinity where it
        is too large), and every number but 0 is ``True``.

            >>> next(iter(drive.cast("datetime64[D]", "id").skip(31)))["id"]
            np.datetime64('1970-02-01')

        Times arrive as int64 that count their own unit (``pipeline.element`` says which). ``"datetime64[s]"`` and
        ``"timedelta64[ms]"`` give numpy's own times in that unit, and ``"datetime64"`` in the field's; whole numbers
        become times that count the unit. A coarser unit rounds down. TensorFlow and PyTorch have no times: they get
        int64 in the new unit. What numpy would turn into another number without a word is
        an error: an integer that does not fit, NaN or infinity as an integer or bool. Nulls stay nulls.

        Args:
            dtype: numpy's, or its name: an integer, a float, bool, or a time.
            names: names or regexes; at least one, because a cast of everything would include ids and labels.

        Raises:
            PipelineError: another dtype, no field, or a field of texts or bytes.
            DecodeError: a number that does not fit; names field, file and row.
        """
        return self._with_stage(Cast.of(dtype, names))

    def encode(
        self,
        field: str | UnischemaField,
        vocabulary: Iterable[object] | None = None,
        unknown: int | Literal["error"] = "error",
    ) -> Self:
        """Texts, byte strings or integers of a field as int64 codes, also in lists and windows.

            >>> batch = next(iter(drive.encode("drive").encode("tags", ["t1", "t0"]).skip(18).batch(4)))
            >>> batch["drive"].tolist(), batch["tags"].tolist()
            ([0, 0, 1, 1], [[], [1], [1, 0], []])

        A code is a value's place in the vocabulary. Without one, the vocabulary is learned: the sorted distinct values
        of the stored field in the rows that the pipeline selects (every filter counts, parts of ranks and epochs do
        not). It is learned once, when iteration begins, kept on disk, and the same on every rank; ``vocabulary(field)``
        of a `Pipeline` tells it. Another pipeline, for validation say, learns its own: give it the first one's. Nulls
        stay nulls.

        Args:
            vocabulary: the values, each once; a value's code is its place.
            unknown: the code of values that the vocabulary has not; ``"error"`` raises for them.

        Raises:
            PipelineError: a field of other values, a vocabulary that does not fit it, or one to be learned of a field
                whose values an earlier stage changed.
            FieldNotFoundError: no such field (raised when the element is first needed).
            DecodeError: a value that the vocabulary has not; names field, file and row.
        """
        return self._with_stage(Encode.of(field, vocabulary, unknown))

    def nulls(self, policy: str, *names: str, value: Any = None, elements: bool = False) -> Self:
        """What becomes of nulls in the fields that the names or regexes select (all nullable ones, if none is given).

            >>> [str(row["name"]) for row in drive.nulls("fill", "name", value="?").take(3)]
            ['?', 'n1', 'n2']
            >>> [bool(row["name__valid"]) for row in drive.nulls("mask", "name").take(3)]
            [False, True, True]

        A null inside a list follows the policy of its field: ``"drop"`` leaves the row out, and ``"fill"`` puts
        ``value`` in its place. A mask of ``elements`` has the shape of the lists, here ``[[1, None], [], [3]]``:

            >>> batch = next(iter(gaps.nulls("mask", "codes", elements=True).batch(3)))
            >>> batch["codes"].tolist(), batch["codes__valid"].tolist()
            ([[1, 0], [], [3]], [[True, False], [], [True]])

        This happens where lists are read, so call it before other verbs on the field; only `select`, `rename` and
        `nested` may come first.
        A null list itself is empty with ``"mask"``, and so is one inside a list; ``"fill"`` raises for them, because
        nobody knows how long they would be, unless the field says it.

        Args:
            policy: ``"error"`` raises; ``"drop"`` leaves the row out; ``"fill"`` puts ``value`` there; ``"mask"`` puts
                zeros there and adds the bool field ``<name>__valid``.
            elements: ``<name>__valid`` tells of each element of a list, not of the list as a whole.

        Raises:
            PipelineError: no such policy, a value that the field cannot hold, or ``elements`` of a field that is no
                list as it is stored.
            NullValueError: a null under ``"error"``; names file and row.
            DecodeError: a null inside a list that no policy takes; names file and row.
        """
        return self._with_stage(Nulls(policy, names or EVERY_FIELD, value, elements))  # type: ignore[arg-type]  # checked there

    def nested(self, *names: str) -> Self:
        """Lists of lists, at any depth, that differ in length at every level.

            >>> batch = next(iter(boxes.nested("boxes").batch(2)))
            >>> batch["boxes"].tolist(), batch["boxes"][0][1]
            ([[[1, 2], [3]], [[], [4, 5, 6]]], array([3]))
            >>> batch["boxes"].values.tolist(), [offsets.tolist() for offsets in batch["boxes"].offsets]
            ([1, 2, 3, 4, 5, 6], [[0, 2, 4], [0, 2, 3, 3, 6]])

        Without it, lists of lists are arrays, and an error where the lists in one row differ in length. In TensorFlow a
        batch is a `tf.RaggedTensor` that is ragged at each level, and a row has one level less. In PyTorch it is a
        `NestedTensors`, in numpy a `NestedArray`: the values, and offsets for each level. Axes of fixed length inside
        the last level that varies stay axes of the values; one outside of it is a level like the others.

        Functions of `transform` get these values too (Arrow's lists with ``batched="arrow"``), and return them or
        nested lists of arrays. Call it before other verbs on the field (``select``, ``rename`` and ``nulls("drop")``
        aside), and `nulls` after it. `pad` and images take arrays only.

        A field that a function makes is declared in its ``output``, and named here behind it:

            >>> cells = UnischemaField("cells", np.int64, (None, None))
            >>> rows = boxes.nested("boxes").transform(lambda row: {**row, "cells": [[1], [2, 3]]}, [cells])
            >>> next(iter(rows.nested("cells")))["cells"].tolist()
            [[1], [2, 3]]

        Raises:
            PipelineError: no name, a field that is neither a list as it is stored nor declared by a function, or one
                whose lists all have one length.
            FieldNotFoundError: a name or regex that matches nothing (raised when the element is first needed).
            DecodeError: a null inside a list; names file and row.
        """
        return self._with_stage(Nested(required_names("nested", names)))

    def pad(self, *names: str, shape: Sequence[int | None] | None = None, value: object = None) -> Self:
        """Makes fields of variable shape dense, and adds their true lengths as ``<name>__length``.

            >>> batch = next(iter(drive.pad("points").batch(4)))
            >>> batch["points"].shape, batch["points__length"].tolist()
            ((4, 3, 3), [0, 1, 2, 3])

        Args:
            shape: the padded shape; ``None`` axes (or no shape) grow to the largest value of each batch.
            value: what to pad with; 0 (or an empty text) if not given.

        Raises:
            PipelineError: a shape that does not fit the field's, or none where there is no batch to grow to.
            DecodeError: a value larger than ``shape``; names file and row.
        """
        wanted = None if shape is None else tuple(shape)
        return self._with_stage(Pad(required_names("pad", names), wanted, value))

    def fixed(self, *names: str, shape: Sequence[int]) -> Self:
        """Declares that every value of some fields has this shape.

            >>> one = drive.where(pc.bit_wise_and(pc.field("id"), 3) == 1).fixed("points", shape=(1, 3))
            >>> next(iter(one.batch(5)))["points"].shape
            (5, 1, 3)

        Raises:
            PipelineError: a shape that does not fit the field's.
            DecodeError: a value of another shape; names file and row.
        """
        return self._with_stage(Pad(required_names("fixed", names), tuple(shape), None, False))

    def permute(self, *names: str, dims: Sequence[str]) -> Self:
        """Puts the axes of fields that declare ``dims`` into another order.

            >>> next(iter(drive.permute("image", dims=("C", "H", "W")).batch(8)))["image"].shape
            (8, 3, 4, 5)

        Raises:
            PipelineError: a field without these axes.
        """
        return self._with_stage(Permute(required_names("permute", names), tuple(dims)))

    def decimals(self, form: str, *names: str) -> Self:
        """How decimal fields are delivered: exact ``"text"`` (the default), ``"float64"``, or ``"scaled"`` int64.

            >>> [int(row["price"]) for row in drive.decimals("scaled", "price").take(3)]  # in hundredths
            [0, 25, 50]

        Raises:
            PipelineError: a field that is no decimal, or a call behind other work on values.
        """
        return self._with_stage(Decimals(form, required_names("decimals", names)))  # type: ignore[arg-type]  # checked there

    def pack(self, name: str, fields: FieldNames, dtype: DTypeLike | None = None, *, keep: bool = False) -> Self:
        """Many numeric fields (scalars or vectors of fixed length) as one vector field ``name``, ``[B, K]`` in a batch.

            >>> packed = drive.nulls("fill", "speed", value=0).pack("x", ["speed", "id"], np.float32)
            >>> next(iter(packed.batch(3)))["x"].tolist()
            [[0.0, 0.0], [0.5, 1.0], [1.0, 2.0]]

        Args:
            fields: names or regexes, in the order wanted (those of a regex in the schema's order).
            dtype: of the vector; if not given, the smallest that holds all of them as numpy promotes types.
            keep: whether the fields remain beside it.

        Raises:
            PipelineError: a field that is no number or vector of fixed length, or that ``dtype`` cannot hold.
            NullValueError, DecodeError: a null, or a number that ``dtype`` cannot hold; names file and row.
        """
        return self._with_stage(Pack.of(name, fields, dtype, keep=keep))

    def as_tuple(self, *parts: object) -> Self:
        """Rows (or batches) as tuples instead of dicts, with these fields only: what ``model.fit`` and training loops
        take apart.

            >>> speed, number = next(iter(drive.as_tuple("speed", "id").skip(1).batch(2)))
            >>> speed.tolist(), number.tolist()
            ([0.5, 1.0], [1, 2])
            >>> inputs, number = next(iter(drive.as_tuple({"v": "speed", "who": "name"}, "id").skip(4)))
            >>> float(inputs["v"]), str(inputs["who"]), int(number)
            (2.0, 'n4', 4)

        What is batched, shuffled, dealt or repeated afterwards stays a tuple. Verbs that add, remove or rename fields,
        and functions of rows by name, belong before it.

        Args:
            parts: names of fields, tuples of them, or dicts ``{key: name}``, to any depth; a name may come twice. In
                windows with fields for each offset, a name stands for the field at its only offset, or for ``{offset:
                value}`` if there are several, and ``"1.name"`` for the one at offset 1.

        Raises:
            PipelineError: no name, or something that is none.
            FieldNotFoundError: a name that no field has (raised when the element is first needed).
        """
        return self._with_stage(AsTuple.of(parts))

    def transform(
        self,
        fn: Callable[[Any], Any],
        output: Sequence[UnischemaField] | Unischema | None = None,
        remove: Sequence[str] = (),
        batched: bool | Literal["arrow"] = False,
        drops: bool = False,
    ) -> Self:
        """Applies a function of numpy values (or Arrow batches) to every row (or batch) in the workers.

            >>> twice = UnischemaField("twice", np.int64)
            >>> doubled = drive.select("id").transform(lambda row: {**row, "twice": row["id"] * 2}, [twice])
            >>> [int(row["twice"]) for row in doubled.take(3)]
            [0, 2, 4]

        Args:
            fn: row dict -> row dict; with ``batched=True`` or after ``batch()``, dict of arrays -> dict of arrays; with
                ``batched="arrow"``, ``pyarrow.RecordBatch`` -> the same.
            output: fields that the function adds or changes, with dtype and shape; what it returns is held to them.
            remove: fields that do not remain.
            drops: ``fn`` may return ``None`` to leave a row out; the pipeline's length is then unknown.

        Raises:
            PipelineError: arguments that do not go together.
            TransformError: the function raised, or did not return what ``output`` says; names file and row.
        """
        declared = None if output is None else tuple(output)
        return self._with_stage(Transform(UserFunction(fn), declared, names_of(remove), batched, drops))
