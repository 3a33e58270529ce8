"""``tokenize``: makes token ids of texts, with a tokenizer or a function."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.errors import FieldNotFoundError, PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.field import no_such_field
from .base import Stage
from .columns import Columns
from .functions import UserFunction, digest_of
from .steps import Step

NullTexts = Literal["error", "empty"]
Kind = Literal["tokenizers", "transformers", "tiktoken", "function"]


class Tokenizer:
    """A tokenizer of any library, or a function, as a function of many texts.

    Attributes:
        tokenizer: what the user passed.
        kind: the library whose interface it has; one of texts has none.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.kind: Kind = _kind_of(tokenizer)
        own = tokenizer if hasattr(tokenizer, "__qualname__") else type(tokenizer)
        self.__qualname__ = own.__qualname__

    def __call__(self, texts: Sequence[str], threads: int) -> Sequence[Any]:
        """Returns the ids of each text: a list, an array, or whatever a function returned.

        Args:
            threads: how many threads may work at once, if the library leaves that to its callers.
        """
        tokenizer: Any = self.tokenizer
        match self.kind:
            case "tokenizers":
                batched = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
                return [encoding.ids for encoding in batched(texts)]
            case "transformers":
                made = tokenizer(texts, return_attention_mask=False, return_token_type_ids=False, verbose=False)
                ids: Sequence[Any] = made["input_ids"]
                return ids
            case "tiktoken":
                encoded: Sequence[Any] = tokenizer.encode_ordinary_batch(texts, num_threads=threads)
                return encoded
        return [tokenizer(text) for text in texts]

    @property
    def digest(self) -> str:
        """A short hash of what it does, the same in every process; see `digest_of`."""
        tokenizer: Any = self.tokenizer
        match self.kind:
            case "tokenizers":
                content = tokenizer.to_str().encode()
            case "tiktoken":
                content = pickle.dumps(tokenizer, protocol=4)
            case "transformers":
                content = json.dumps([type(tokenizer).__qualname__, *_vocabulary(tokenizer)], sort_keys=True).encode()
            case _:
                return digest_of(tokenizer)
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def _kind_of(tokenizer: Any) -> Kind:
    if hasattr(tokenizer, "encode_ordinary_batch"):
        return "tiktoken"
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
        if tokenizer.padding is not None:
            raise PipelineError(
                "tokenize: expected a tokenizer that adds no padding, got one that pads each batch. Call "
                "no_padding() on it; bucket() and pad() add padding later."
            )
        return "tokenizers"
    if not callable(tokenizer):
        raise PipelineError(
            f"tokenize: expected a function of a text, or a tokenizer of tokenizers, transformers or tiktoken, got "
            f"{type(tokenizer).__name__}. Pass a function such as lambda text: tokenizer.encode(text)."
        )
    return "transformers" if hasattr(tokenizer, "convert_tokens_to_ids") else "function"


def _vocabulary(tokenizer: Any) -> list[Any]:
    """What a tokenizer of transformers does. Its truncation and padding are left out, as calls change them."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or not hasattr(fast, "to_str"):
        return [tokenizer.get_vocab(), repr(tokenizer.special_tokens_map)]
    return [{name: value for name, value in json.loads(fast.to_str()).items() if name not in ("truncation", "padding")}]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeStep(Step):
    """Adds the ids of the texts in column ``number``, which holds ``field``.

    Attributes:
        output: the field of ids.
        function: a `Tokenizer`.
        nulls: whether a null has no tokens, or is an error.
    """

    runs_user_code: ClassVar[bool] = True
    adds_column: ClassVar[bool] = True
    number: int
    field: OutputField
    output: OutputField
    function: UserFunction
    nulls: NullTexts

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        return [*columns, None]

    def counted(self, columns: Sequence[bool]) -> list[bool]:
        return [*columns, True]


@dataclass(frozen=True)
class Tokenize(Stage):
    """Adds a field with the token ids of a text, whose lengths can be counted."""

    verb: ClassVar[str] = "tokenize"
    changes_names: ClassVar[bool] = True
    makes_values: ClassVar[bool] = True
    decides_order: ClassVar[bool] = True
    function: UserFunction
    field: str
    to: str = "tokens"
    dtype: str = "int32"
    nulls: NullTexts = "error"

    @classmethod
    def of(
        cls, tokenizer: Callable[[str], Any] | object, field: str, to: str, dtype: str, nulls: str, version: object
    ) -> Tokenize:
        """Creates the stage; a ``version`` takes the place of what is known of the tokenizer."""
        made = Tokenizer(tokenizer)
        digest = made.digest if version is None else version_digest("tokenize", version)
        return cls(UserFunction(made, digest), field, to, dtype, nulls)  # type: ignore[arg-type]  # checked there

    @classmethod
    def sample(cls) -> Stage:
        return cls(UserFunction(Tokenizer(lambda text: [*map(ord, text)]), "sample"), "x")

    def check(self) -> None:
        for name in ("field", "to"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise PipelineError(
                    f"tokenize: expected {name} to be the name of a field, got {getattr(self, name)!r}."
                )
        if np.dtype(self.dtype).kind not in "iu":
            raise PipelineError(f"tokenize: expected an integer dtype, got {self.dtype}.")
        if self.nulls not in ("error", "empty"):
            raise PipelineError(f"tokenize: expected nulls='error' or 'empty', got {self.nulls!r}.")

    def changes(self, name: str) -> bool:
        return name == self.to

    def counts(self, name: str) -> bool:
        return name == self.to

    @property
    def made_from(self) -> tuple[str, ...]:
        return (self.field,)

    def apply(self, columns: Columns) -> None:
        columns.open()
        matches = [number for number, output in enumerate(columns.outputs) if output.path == (self.field,)]
        if not matches:
            if self.field in columns.names:
                raise PipelineError(
                    f"tokenize: expected a text of each row, got '{self.field}' at each offset of a window. Call "
                    "transform() instead."
                )
            raise FieldNotFoundError(f"tokenize: {no_such_field(self.field, columns.names)}")
        source = columns.outputs[matches[0]]
        if source.kind != "text" or source.element_shape or source.levels:
            raise PipelineError(
                f"tokenize: expected field '{self.field}' to hold one text for each row, got {source.kind} "
                f"{source.dtype} of shape {source.element_shape}. Name the field of texts."
            )
        output = OutputField(path=(self.to,), kind="dense", dtype=np.dtype(self.dtype), shape=(None,))
        step = TokenizeStep(number=matches[0], field=source, output=output, function=self.function, nulls=self.nulls)
        columns.add(output, verb="tokenize")
        columns.steps.append(step)

    def __str__(self) -> str:
        more = "" if self.dtype == "int32" else f", dtype='{self.dtype}'"
        more += "" if self.nulls == "error" else f", nulls='{self.nulls}'"
        return f"tokenize({self.function!r}, '{self.field}', to='{self.to}'{more})"


def version_digest(verb: str, version: object) -> str:
    """What identifies a function whose version the user gives.

    Raises:
        PipelineError: the version is neither a text nor an integer.
    """
    if isinstance(version, bool) or not isinstance(version, str | int):
        raise PipelineError(f"{verb}: expected version= to be a text or an integer, got {version!r}.")
    return f"version {version}"
