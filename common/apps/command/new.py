"""``new``: a training program for a dataset."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from ...base.errors import PipelineError
from .output import Code, Shown, Url, command


def register(app: typer.Typer) -> None:
    """Adds the command to the app."""
    command(
        app,
        "parquetry new data/clicks --target clicked --split user_id",
        "parquetry new data/photos --target label --keras --output train.py",
    )(new)


def new(
    url: Url,
    target: Annotated[str, typer.Option(metavar="FIELD", help="The field to predict.")],
    split: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Rows with the same value stay in one part, such as those of a user."),
    ] = None,
    torch: Annotated[
        bool, typer.Option("--torch", help="Write it for PyTorch: the default where it is there.")
    ] = False,
    keras: Annotated[bool, typer.Option("--keras", help="Write it for Keras and TensorFlow.")] = False,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write it to a new file instead of printing it.")
    ] = None,
) -> Shown:
    """Print a program that trains a small model on a dataset: nulls, encodings, a split, batches, and resuming."""
    if torch and keras:
        raise PipelineError("expected --torch or --keras, got both.")
    from ..reports.program import program
    from ..reports.roles import columns_of, opened_by, roles_of

    pipeline, opener = opened_by(url)
    roles = roles_of(columns_of(pipeline), target, split)
    uses_torch = torch or (not keras and find_spec("torch") is not None)
    text = program(url, roles, "torch" if uses_torch else "keras", opener=opener)
    value = {"program": text, "roles": dict(roles.by_name), "split": roles.split}
    if output is None:
        return Shown(value, (Code(text.rstrip("\n")),))
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PipelineError(f"--output {output}: expected a new file, got one that exists. Name another.") from None
    return Shown({**value, "output": output}, (f"written to {output}",))
