"""Draws the images of a pipeline as one picture: a contact sheet of rows, or film strips of windows. Decodes tokens.

The pixels are a uint8 array ``(H, W, 3)``, which the command shows in a terminal or writes as PNG. Dtypes other than
uint8 are scaled from the range of their values to 0..255.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from ...base.errors import CodecUnavailableError, DatasetError, PipelineError
from ...base.process.dataclass import dataclass
from ...pipeline.display.images import GAP, fitted, images_of, is_image, laid_out
from ...pipeline.display.text import short_text
from ...pipeline.pipeline import Pipeline
from ...storage.whole_files import whole_file
from .rows import preview


class TokenDecoder(Protocol):
    """Decodes tokens to text, like ``tokenizers.Tokenizer``."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A picture of several elements.

    Attributes:
        field: the field that the images come from.
        pixels: uint8 ``(H, W, 3)``.
        images: the number of images. For windows, each line of the picture is one window.
        captions: short values of the other fields, one line per element.
    """

    field: str
    pixels: np.ndarray
    images: int
    captions: tuple[str, ...]


def contact_sheet(
    pipeline: Pipeline,
    count: int = 16,
    *,
    field: str | None = None,
    columns: int = 4,
    tile: int = 128,
    max_width: int | None = None,
    seed: int | None = None,
) -> Sheet:
    """Draws images of a pipeline side by side. Each window is drawn as a strip on its own line.

    >>> contact_sheet(Pipeline("data/train"), 9, columns=3).pixels.shape  # doctest: +SKIP
    (392, 392, 3)

    Args:
        count: the number of elements.
        field: the field to draw; ``None`` = the first image field.
        columns: images per line. A window always takes one line.
        tile: the height and width of the square that each image is scaled to fit, in pixels.
        max_width: the maximum width of the picture in pixels. Tiles shrink to fit.
        seed: samples elements at random with this seed; ``None`` takes the first ones.

    Raises:
        PipelineError: there is no image field, the pipeline is batched, or a number is out of range.
    """
    if min(count, columns, tile) < 1:
        raise PipelineError(f"plot: expected numbers >= 1, got {count} rows, {columns} columns, tiles of {tile}.")
    element = pipeline.element
    if element.batched:
        raise PipelineError("plot: expected rows, got batches. Leave batch() out.")
    images = [output for output in element.outputs if is_image(output)]
    path = [output for output in element.outputs if field in (output.name, str(output.path[-1]))] if field else images
    if not path:
        names = ", ".join(output.name for output in images)
        raise PipelineError(
            f"plot: expected a field of images, got {field!r}. Image fields are: {names or 'none'}."
            if field
            else f"plot: expected a field of images, got {', '.join(output.name for output in element.outputs)}. "
            "Look at other values with head."
        )
    if not is_image(path[0]):
        raise PipelineError(f"plot: expected images in '{path[0].name}', got shape {path[0].shape}.")
    rows = preview(pipeline, count, sample=seed is not None, seed=seed).elements
    chosen = [output for output in path if is_image(output) and output.path[-1] == path[0].path[-1]]
    strips = [[image for output in chosen for image in images_of(row[output.name], output)] for row in rows]
    if any(len(strip) != 1 for strip in strips):
        lines = strips
    else:
        flat = [strip[0] for strip in strips]
        lines = [flat[start : start + columns] for start in range(0, len(flat), columns)]
    across = max(map(len, lines), default=1)
    tile = tile if max_width is None else max(1, min(tile, (max_width + GAP) // max(across, 1) - GAP))
    return Sheet(
        field=path[0].name,
        pixels=laid_out([[fitted(image, tile) for image in line] for line in lines], tile),
        images=sum(map(len, strips)),
        captions=tuple(_caption(row, {output.name for output in images}) for row in rows),
    )


def save_png(pixels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Writes pixels to a PNG file, atomically.

    Raises:
        DatasetError: the file cannot be written.
    """
    from PIL import Image

    try:
        with whole_file(os.path.abspath(path)) as hidden:
            Image.fromarray(pixels).save(hidden, format="png")
    except OSError as error:
        raise DatasetError(f"picture {os.fspath(path)}: cannot be written: {error}") from error


def decoded_tokens(values: object, tokenizer: TokenDecoder) -> str:
    """Decodes a list of tokens. A missing token or list becomes ``null``."""
    if values is None:
        return "null"
    runs = groupby(np.asarray(values, object).reshape(-1).tolist(), key=lambda token: token is None)
    texts = ["null " * len(list(run)) if null else tokenizer.decode(list(map(int, run))) for null, run in runs]
    return " ".join(map(str.strip, texts)) if len(texts) > 1 else "".join(texts)


def load_tokenizer(path: str | os.PathLike[str]) -> TokenDecoder:
    """Loads a Hugging Face tokenizer from its ``tokenizer.json``.

    Raises:
        CodecUnavailableError: the library ``tokenizers`` is not installed.
        DatasetError: the file does not exist, or is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise CodecUnavailableError(
            "plot: tokens need the library tokenizers, which is not installed. Run: pip install tokenizers"
        ) from error
    try:
        made: TokenDecoder = Tokenizer.from_file(os.fspath(path))
    except Exception as error:  # the library raises bare exceptions
        raise DatasetError(f"tokenizer {os.fspath(path)}: expected a tokenizer.json, got: {error}") from error
    return made


def token_fields(pipeline: Pipeline) -> list[str]:
    """Returns the names of fields that may hold tokens: lists of integers."""
    outputs = pipeline.element.outputs
    return [
        output.name
        for output in outputs
        if output.kind == "dense" and output.dtype.kind in "iu" and len(output.shape) == 1
    ]


def _caption(row: Mapping[str, Any], without: set[str]) -> str:
    return ", ".join(f"{name} {short_text(value, 12)}" for name, value in row.items() if name not in without)
