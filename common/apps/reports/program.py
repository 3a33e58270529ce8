"""`program` writes a training program for a dataset: from the roles of its columns to the text of a Python module.

It is a pure function. The text is formatted as ``ruff format`` does, so that it can go into a repository as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Literal

from .code_lines import wrapped
from .roles import Column, Role, Roles

_EMBEDDING = 16
_IMAGE_FEATURES = 32
_HIDDEN = 64
_MASKED_SHARE = 0.05
_LISTS: tuple[Role, ...] = ("codes", "text")
_CODED: tuple[Role, ...] = ("category", "hashed", *_LISTS)

Framework = Literal["torch", "keras"]


def program(url: str, roles: Roles, framework: Framework, *, opener: str = "Pipeline") -> str:
    """Returns the text of a program that trains a small model on a dataset for one epoch, and resumes.

    >>> amount = Column(name="amount", dtype="float64", shape=(), count=9)
    >>> clicked = Column(name="clicked", dtype="bool", shape=(), count=9, distinct=2)
    >>> text = program("clicks", roles_of([amount, clicked], "clicked"), "torch")
    >>> text.splitlines()[0]
    '\"\"\"Train on clicks to predict clicked. Run it again to continue where it stopped.\"\"\"'
    """
    lines = [*_heading(url, roles, framework), *_rows(f"{opener}({_source(url, roles)})", roles), *_features(roles)]
    lines += _torch_program(roles) if framework == "torch" else _keras_program(roles)
    text = "\n".join(line for statement in lines for line in wrapped(statement)) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)  # two blank lines around functions


def _heading(url: str, roles: Roles, framework: Framework) -> list[str]:
    name = re.sub(r"[^\w.:-]", "_", url.rstrip("/").rpartition("/")[2])[:30] or "the rows"
    said = f'"""Train on {name} to predict {_comment(roles.target)[:20]}. Run it again to continue where it stopped."""'
    times, declared = bool(roles.of("time")), bool(_declared(roles))
    torch = framework == "torch"
    names = sorted(
        ["ParquetIterable" if torch else "ParquetDataset", "Pipeline"]
        + ["CompressedImageCodec"] * declared
        + ["UnischemaField"] * (declared or times)
    )
    lines = [said, "", *(["from pathlib import Path", ""] if torch else ["import keras"])]
    lines += ["import numpy as np"] * times + ["import torch"] * torch
    own = "torch_plugin import prefetch_to_device" if torch else "tf_plugin.keras import ResumeTraining"
    return [*lines, f"from parquetry import {', '.join(names)}", f"from parquetry.{own}", ""]


def _rows(opened: str, roles: Roles) -> list[str]:
    """The rows, their split, and the statistics of the training part."""
    lists: dict[str, Role] = {"NUMBERS": "number", "CATEGORIES": "category", "TIMES": "time"}
    lines = [f"{name} = [{_texts(roles, role)}]" for name, role in lists.items() if roles.of(role)]
    lines += [""] if len(lines) else []
    lines += [f"# Left out: {_comment(name)} ({reason})." for name, reason in roles.reasons.items()]
    lines += [*_declared(roles), f"rows = {opened}{_of_all_rows(roles)}"]
    lines += [*(_TIMES if roles.of("time") else []), *(_TOKENS if roles.of("text") else [])]
    lines.append(_split(roles))
    fitted = [f"*{name}" for name, role in lists.items() if roles.of(role) and role != "time"]
    fitted += [_text(column.name) for column in roles.of("array")]
    fitted += [_text(roles.target)] if roles.task == "number" else []
    if fitted:
        lines += ["# Learned from the training part alone, used in both.", f"stats = train.fit({', '.join(fitted)})"]
    sizes = [f"{_text(name)}: {size}" for name, size in _sizes(roles).items()]
    if roles.of("category"):
        learned = "{name: len(stats[name].values) + 1 for name in CATEGORIES}"
        return [*lines, f"SIZES = {learned} | {{{', '.join(sizes)}}}" if sizes else f"SIZES = {learned}"]
    return [*lines, *([f"SIZES = {{{', '.join(sizes)}}}"] if sizes else [])]


def _source(url: str, roles: Roles) -> str:
    """The arguments of `Pipeline`, with the fields if image files are to be declared as images."""
    if not _declared(roles):
        return _text(url)
    used = [column for column in roles.columns if column.name not in roles.reasons or column.name == roles.split]
    return f"{_text(url)}, [{', '.join('image' if column.image else _text(column.name) for column in used)}]"


def _declared(roles: Roles) -> list[str]:
    """The declaration of a column of image files in bytes."""
    return [
        f'image = UnischemaField({_text(column.name)}, "uint8", (None, None, 3), '
        f'CompressedImageCodec("{column.image}", convert=True))'
        for column in roles.of("image")
        if column.image
    ]


def _of_all_rows(roles: Roles) -> str:
    """The verbs before the split."""
    target = roles.of("target")[0]
    decimals = _names(column for column in _used(roles) if column.dtype == "decimal")
    lists = _names(column for column in roles.of(*_LISTS, "floats") if column.shape and column.null_share)
    return (
        (f'.decimals("float64", {decimals})' if decimals else "")
        + (f'.nulls("mask", {lists})' if lists else "")
        + (f'.nulls("drop", {_text(target.name)})' if target.null_share else "")
        + (f".encode({_text(target.name)})" if roles.task == "classes" else "")
    )


def _split(roles: Roles) -> str:
    if roles.split is None:
        each = [f"rows.{verb}(len(rows) * 4 // 5)" for verb in ("take", "skip")]
        return f"train, validation = {', '.join(f'with_times({part})' if roles.of('time') else part for part in each)}"
    part = f"rows.hash_split({_text(roles.split)}, [0.8, 0.2], part)"
    each_part = f"with_times({part})" if roles.of("time") else part
    return f"train, validation = ({each_part} for part in (0, 1))"


def _sizes(roles: Roles) -> dict[str, str]:
    """How many codes each column has that is coded without a vocabulary."""
    sizes = {column.name: "10_000" for column in roles.of("hashed", "codes")}
    return sizes | {_tokens_of(roles, column): "256" for column in roles.of("text")}


def _features(roles: Roles) -> list[str]:
    """The function from rows to what the model takes."""
    lines = ["", "", "def features(part):"]
    texts = [column for column in roles.of("hashed", "text") if column.null_share]
    for kind, value in (("str", '""'), ("int", "-1"), ("uint", "0")):
        names = _names(column for column in texts if column.dtype.startswith(kind))
        lines += [f'    part = part.nulls("fill", {names}, value={value})'] if names else []
    if roles.of("category"):
        lines += [
            "    for name in CATEGORIES:  # what is null or new in validation has the last code",
            "        unknown = len(stats[name].values)",
            '        part = part.encode(name, unknown=unknown, null="unknown", stats=stats)',
        ]
    hashed = _names(roles.of("hashed", "codes"))
    lines += [f"    part = part.hash_encode({hashed}, buckets=10_000)"] if hashed else []
    for column in roles.of("text"):
        lines.append(f"    part = part.tokenize(tokens, {_text(column.name)}, to={_text(_tokens_of(roles, column))})")
    padded = [column.name for column in roles.of("codes")] + [_tokens_of(roles, column) for column in roles.of("text")]
    lines += [f"    part = part.pad({_text(name)}, value=SIZES[{_text(name)}])" for name in padded]
    lines += [f"    part = part.pad({_names(roles.of('floats'))})"] if roles.of("floats") else []
    for column in roles.of("image"):
        statistics = ", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]" if column.shape[2:] in ((3,), ()) else ""
        name = _text(column.name)
        lines.append(f"    part = part.resize({name}, (128, 128)).normalize({name}{statistics})")
    return [*lines, *_numbers(roles), f"    return part.select({', '.join(_outputs(roles))})"]


def _numbers(roles: Roles) -> list[str]:
    """The verbs that make one matrix of all numbers."""
    numbers, flags, arrays = roles.of("number"), roles.of("flag"), roles.of("array")
    stars = (["*NUMBERS"] if numbers else []) + [_text(column.name) for column in arrays]
    if roles.task == "number":
        stars.append(_text(roles.target))
    lines = [f"    part = part.standardize({', '.join(stars)}, stats=stats)"] if stars else []
    holes = [column for column in (*numbers, *flags) if column.null_share]
    masked = [column for column in holes if column.null_share > _MASKED_SHARE]
    filled = [column for column in holes if column not in masked]
    if masked:
        lines += ["    # Null becomes 0, which is the mean, beside a flag: <name>__valid."] if numbers else []
        lines.append(f'    part = part.nulls("mask", {_names(masked)})')
    if filled:
        lines += ["    # Few are null: they become 0, which is the mean."] if numbers else []
        lines.append(f'    part = part.nulls("fill", {_names(filled)}, value=0)')
    packed = _packed(roles)
    return (
        [*lines, f'    part = part.pack({_text(_matrix(roles))}, [{", ".join(packed)}], "float32")']
        if packed
        else lines
    )


def _packed(roles: Roles) -> list[str]:
    """The columns of the matrix, as code."""
    flags = [column.name for column in roles.of("flag")]
    flags += [f"{column.name}_{unit}" for column in roles.of("time") for unit in ("hour", "day")]
    numbers = roles.of("number", "flag")
    flags += [f"{column.name}__valid" for column in numbers if column.null_share > _MASKED_SHARE]
    return (["*NUMBERS"] if roles.of("number") else []) + list(map(_text, flags))


def _width(roles: Roles) -> int:
    return len(_packed(roles)) + max(len(roles.of("number")) - 1, 0)


def _outputs(roles: Roles) -> list[str]:
    rest = [column.name for column in roles.of("floats")]
    lengths = [f"{name}__length" for name in rest]
    rest += [*lengths, *(column.name for column in roles.of("array", "image")), roles.target]
    coded = ["*SIZES"] if roles.of(*_CODED) else []
    return [*([_text(_matrix(roles))] if _packed(roles) else []), *coded, *map(_text, rest)]


# What the two frameworks share.

_TIMES = '''

def with_times(part):
    """Add the hour and the weekday (Monday is 0) of each time, from 0 to 1."""

    def add(batch):
        added = {}
        for name in TIMES:
            seconds = batch[name].astype("datetime64[s]").astype(np.int64)
            added[f"{name}_hour"] = np.float32(seconds // 3_600 % 24 / 24)
            added[f"{name}_day"] = np.float32((seconds // 86_400 + 3) % 7 / 7)
        return added

    names = [f"{name}_{unit}" for name in TIMES for unit in ("hour", "day")]
    fields = [UnischemaField(name, np.float32) for name in names]
    part = part.cast("datetime64[us]", TIMES)
    return part.transform(add, adds=fields, batched=True)


'''.splitlines()

_TOKENS = '''

def tokens(text):
    """Return token ids from 0 to 255. Put your own tokenizer here."""
    return list(text.encode()[:512])


'''.splitlines()


def _used(roles: Roles) -> list[Column]:
    return [column for column in roles.columns if column.name not in roles.reasons]


def _inputs(roles: Roles) -> int:
    """How many numbers the head of the model takes."""
    arrays = sum(math.prod(axis or 0 for axis in column.shape) for column in roles.of("array"))
    images = _IMAGE_FEATURES * len(roles.of("image"))
    return _width(roles) + _EMBEDDING * len(roles.of(*_CODED)) + arrays + images + len(roles.of("floats"))


def _matrix(roles: Roles) -> str:
    return _free("numbers", roles)


def _tokens_of(roles: Roles, column: Column) -> str:
    return _free(f"{column.name}_tokens", roles)


def _free(name: str, roles: Roles) -> str:
    """A name that no column has."""
    while any(column.name == name for column in roles.columns):
        name += "_"
    return name


def _checkpoint(roles: Roles, ending: str) -> str:
    return _text((re.sub(r"\W+", "_", roles.target).strip("_") or "model") + ending)


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(_text(column.name) for column in columns)


def _texts(roles: Roles, role: Role) -> str:
    return _names(roles.of(role))


def _text(text: str) -> str:
    """A string as ruff writes it: in double quotes, unless these need more escapes."""
    single = repr(text)
    return (
        single
        if '"' in text and single.startswith("'") and "\\'" not in single
        else json.dumps(text, ensure_ascii=not text.isprintable())
    )


def _comment(text: str) -> str:
    return re.sub(r"[^\w .#-]", "_", text)


# PyTorch.


def _torch_program(roles: Roles) -> list[str]:
    target = _text(roles.target)
    losses = {
        "binary": f"binary_cross_entropy_with_logits(output[:, 0], batch[{target}].float())",
        "classes": f"cross_entropy(output, batch[{target}])",
        "number": f"mse_loss(output[:, 0], batch[{target}])",
    }
    return [
        *_torch_model(roles),
        "",
        "",
        "def loss_of(batch):",
        "    output = model(batch)",
        f"    return torch.nn.functional.{losses[roles.task]}",
        "",
        "",
        *_TORCH_LOOP.replace("CHECKPOINT", _checkpoint(roles, ".pt")).splitlines(),
    ]


def _torch_model(roles: Roles) -> list[str]:
    outputs = f"len(rows.vocabulary({_text(roles.target)}))" if roles.task == "classes" else "1"
    image, coded = next(iter(roles.of("image")), None), roles.of(*_CODED)
    bags = f"(torch.nn.EmbeddingBag(size + 1, {_EMBEDDING}, padding_idx=size) for size in SIZES.values())"
    lines = ["", "", "class Model(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.embeddings = torch.nn.ModuleList{bags}"] if coded else []
    if image:
        lines += [
            "        self.image = torch.nn.Sequential(",
            f"            torch.nn.Conv2d({_channels(image)}, 16, 5, stride=4),",
            "            torch.nn.ReLU(),",
            f"            torch.nn.Conv2d(16, {_IMAGE_FEATURES}, 3, stride=2),",
            "            torch.nn.ReLU(),",
            "            torch.nn.AdaptiveAvgPool2d(1),",
            "            torch.nn.Flatten(),",
            "        )",
        ]
    lines += [
        "        self.head = torch.nn.Sequential(",
        f"            torch.nn.Linear({_inputs(roles)}, {_HIDDEN}),",
        "            torch.nn.ReLU(),",
        f"            torch.nn.Linear({_HIDDEN}, {outputs}),",
        "        )",
        "",
        "    def forward(self, batch):",
    ]
    parts = []
    if _packed(roles):
        value = f"batch[{_text(_matrix(roles))}]"
        parts.append(f"{value}.nan_to_num()" if any(column.odd for column in roles.of("number")) else value)
    parts += [f"batch[{_text(column.name)}].flatten(1)" for column in roles.of("array")]
    if image:
        parts.append(f"self.image(batch[{_text(image.name)}].permute(0, 3, 1, 2))")
    lines.append(f"        parts = [{', '.join(parts)}]")
    for column in roles.of("floats"):
        name, length = _text(column.name), _text(f"{column.name}__length")
        lines.append(f"        mean = batch[{name}].sum(1) / batch[{length}].clamp(min=1)")
        lines.append("        parts.append(mean[:, None].float())")
    if coded:
        lines += [
            "        for name, embedding in zip(SIZES, self.embeddings, strict=True):",
            "            codes = batch[name]",
            "            parts.append(embedding(codes.view(len(codes), -1)))",
        ]
    return [*lines, "        return self.head(torch.cat(parts, 1))"]


def _channels(image: Column) -> int:
    return image.shape[2] or 3 if image.shape else 3


_TORCH_LOOP = """\
def save():
    parts = {"model": model, "optimizer": optimizer, "batches": batches}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").replace(checkpoint)


checkpoint = Path(CHECKPOINT)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters())
shuffled = ParquetIterable(features(train)).shuffle(10_000, seed=7).batch(256)
batches = prefetch_to_device(shuffled, device)
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    batches.load_state_dict(state["batches"])

for step, batch in enumerate(batches, start=1):
    loss = loss_of(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
        save()
save()

model.eval()
held_out = ParquetIterable(features(validation)).batch(256)
with torch.no_grad():
    losses = [loss_of(batch) for batch in prefetch_to_device(held_out, device)]
print(f"validation loss: {sum(losses) / len(losses):.4f}")
"""


# Keras.


def _keras_program(roles: Roles) -> list[str]:
    target, classes = _text(roles.target), roles.task == "classes"
    units = f"len(rows.vocabulary({target}))" if classes else "1"
    loss = {
        "binary": '"binary_crossentropy", metrics=["accuracy"]',
        "classes": '"sparse_categorical_crossentropy", metrics=["accuracy"]',
        "number": '"mse"',
    }[roles.task]
    activation = {"binary": ', "sigmoid"', "classes": ', "softmax"', "number": ""}[roles.task]
    return [
        *_keras_inputs(roles),
        f'hidden = keras.layers.Dense({_HIDDEN}, "relu")(keras.layers.Concatenate()(parts))'
        if _count(roles) > 1
        else f'hidden = keras.layers.Dense({_HIDDEN}, "relu")(parts[0])',
        f"output = keras.layers.Dense({units}{activation})(hidden)",
        "model = keras.Model(tuple(inputs.values()), output)",
        f'model.compile("adam", {loss})',
        "",
        "shuffled = ParquetDataset(features(train)).shuffle(10_000, seed=7).batch(256)",
        f"shuffled = shuffled.as_tuple(tuple(inputs), {target})",
        f"held_out = ParquetDataset(features(validation)).batch(256).as_tuple(tuple(inputs), {target})",
        f"resume = ResumeTraining(shuffled, {_checkpoint(roles, '_checkpoints')}, save_every=100)",
        "# One epoch each time, or what an interruption left of one. The dataset shuffles.",
        "first = resume.initial_epoch",
        "model.fit(shuffled.prefetch(2), validation_data=held_out.prefetch(2), shuffle=False, "
        "initial_epoch=first, epochs=first + 1, callbacks=[resume])",
    ]


def _count(roles: Roles) -> int:
    return bool(_packed(roles)) + len(roles.of(*_CODED, "array", "image", "floats"))


def _keras_inputs(roles: Roles) -> list[str]:
    lists = [*roles.of("codes"), *roles.of("text")]
    lines = ["", ""]
    if lists:
        lines += _BAG.splitlines()
    lines += ["inputs = {}", "parts = []"]
    if _packed(roles):
        odd = any(column.odd for column in roles.of("number"))
        lines += _keras_part(_matrix(roles), f"({_width(roles)},)", "keras.ops.nan_to_num({})" if odd else "{}")
    for column in roles.of("array"):
        lines += _keras_part(column.name, repr(column.shape), "keras.layers.Flatten()({})")
    for column in roles.of("floats"):
        length = _text(f"{column.name}__length")
        lines.append(f"inputs[{length}] = keras.Input(())")
        lines += _keras_part(column.name, "(None,)", "{}")
        lines[-1:] = [
            f"total = keras.ops.sum(inputs[{_text(column.name)}], axis=1, keepdims=True)",
            f"parts.append(total / keras.ops.maximum(inputs[{length}], 1)[:, None])",
        ]
    for column in roles.of("image"):
        lines += _keras_part(column.name, f"(128, 128, {_channels(column)})", "{}")
        lines[-1:] = [
            f"image = inputs[{_text(column.name)}]",
            'image = keras.layers.Conv2D(16, 5, 4, activation="relu")(image)',
            f'image = keras.layers.Conv2D({_IMAGE_FEATURES}, 3, 2, activation="relu")(image)',
            "parts.append(keras.layers.GlobalAveragePooling2D()(image))",
        ]
    single = _names(roles.of("category", "hashed"))
    if single:
        lines += [
            f"for name in [{single}]:",
            '    inputs[name] = keras.Input((), dtype="int64")',
            f"    parts.append(keras.layers.Embedding(SIZES[name], {_EMBEDDING})(inputs[name]))",
        ]
    if lists:
        names = ", ".join(_text(each.name if each.shape else _tokens_of(roles, each)) for each in lists)
        lines += [
            f"for name in [{names}]:",
            '    inputs[name] = keras.Input((None,), dtype="int64")',
            "    parts.append(bag(inputs[name], SIZES[name]))",
        ]
    return lines


def _keras_part(name: str, shape: str, layer: str) -> list[str]:
    key = _text(name)
    return [f"inputs[{key}] = keras.Input({shape})", f"parts.append({layer.format(f'inputs[{key}]')})"]


_BAG = f'''\
def bag(codes, padding):
    """Return the mean embedding of the codes in each list, without the padding."""
    used = keras.ops.cast(codes != padding, "float32")[:, :, None]
    vectors = keras.layers.Embedding(padding + 1, {_EMBEDDING})(codes) * used
    return keras.ops.sum(vectors, 1) / keras.ops.maximum(keras.ops.sum(used, 1), 1)


'''
