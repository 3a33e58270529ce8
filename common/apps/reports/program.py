"""`program` writes a training program for a dataset: from the roles of its columns to the text of a Python module.

It is a pure function. Each line of its templates stands behind what it is for: ``number|`` is for datasets with
numbers, ``number array|`` for those with either, ``!image|`` for those without images. Names of columns are in lists at
the head of the program. So all other lines are short, and formatted as ``ruff format`` does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from string import Template
from typing import Literal, get_args

from .roles import Column, Role, Roles

_WIDTH = 88
_LISTS: dict[str, Role] = {
    "NUMBERS": "number",
    "FLAGS": "flag",
    "CATEGORIES": "category",
    "KEYS": "hashed",
    "LISTS": "codes",
    "TEXTS": "text",
    "FLOATS": "floats",
    "ARRAYS": "array",
    "TIMES": "time",
}
_LONGEST_TITLE = 30
_LONGEST_NAME = 17

Framework = Literal["torch", "keras"]


def program(url: str, roles: Roles, framework: Framework, *, opener: str = "Pipeline") -> str:
    """Returns the text of a program that trains a small model on a dataset for one epoch, and resumes.

    >>> amount = Column(name="amount", dtype="float64", shape=(), count=9)
    >>> clicked = Column(name="clicked", dtype="bool", shape=(), count=9, distinct=2)
    >>> text = program("clicks", roles_of([amount, clicked], "clicked"), "torch")
    >>> text.splitlines()[0]
    '\"\"\"Train on clicks to predict clicked. Run it again to continue where it stopped.\"\"\"'
    """
    template, face = (_TORCH, "ParquetIterable") if framework == "torch" else (_KERAS, "ParquetDataset")
    facts, values = _facts(roles) | {framework}, _values(url, roles, face, opener)
    lines = [line.partition("|") for line in f"{_ROWS}{template}".splitlines()]
    code = "\n".join(code for before, _, code in lines if _holds(before.split(), facts))
    return re.sub(r"\n{4,}", "\n\n\n", Template(code).substitute(values)) + "\n"  # two blank lines around functions


def _holds(conditions: list[str], facts: set[str]) -> bool:
    needed = {name for name in conditions if not name.startswith("!")}
    refused = {name[1:] for name in conditions if name.startswith("!")}
    return not refused & facts and (not needed or bool(needed & facts))


def _facts(roles: Roles) -> set[str]:
    """What the templates may ask for: roles of columns, the task, and what is special about some columns."""
    facts = {role for role in get_args(Role) if roles.of(role)} | {f"{roles.task}_target"}
    special = {
        "split": roles.split is not None,
        "long_split": len(_text(roles.split or "")) > _LONGEST_NAME,
        "left_out": bool(roles.reasons),
        "decimals": bool(_decimals(roles)),
        "null_target": bool(roles.of("target")[0].null_share),
        "null_lists": any(column.null_share for column in roles.of("codes", "floats")),
        "nulls": any(column.null_share for column in roles.of("number", "flag")),
        "matrix": bool(_packed(roles)),
        "odd": any(column.odd for column in roles.of("number")),
        "plain": _is_plain(roles),
        "declared": any(column.image for column in roles.of("image")),
        "colors": any(_channels(column) == 3 for column in roles.of("image")),
    }
    return facts | {name for name, holds in special.items() if holds}


def _values(url: str, roles: Roles, face: str, opener: str) -> dict[str, str]:
    """What the templates insert."""
    lists = {name: _names(roles.of(role)) for name, role in _LISTS.items()}
    lists["DECIMALS"] = _decimals(roles)
    title = re.sub(r"[^\w.:-]", "_", url.rstrip("/").rpartition("/")[2])[:_LONGEST_TITLE] or "the rows"
    image = next(iter(roles.of("image")), None)
    declared = image is not None and bool(image.image)
    fields = ["CompressedImageCodec"] * declared + ["UnischemaField"] * (declared or bool(roles.of("time")))
    packed, scaled = _packed(roles), _stars(roles, "NUMBERS", "ARRAYS")
    target = ["TARGET"] if roles.task == "number" else []
    outputs = [_text(_matrix(roles))] if packed else []
    outputs += ["*SIZES"] if _sizes(roles) else []
    outputs += ["*FLOATS", "*LENGTHS"] if roles.of("floats") else []
    outputs += [*_stars(roles, "ARRAYS"), *(["IMAGE"] if image else []), "TARGET"]
    return {
        **{name: _bracketed(f"{name} = [", map(_text, names), "]") for name, names in lists.items()},
        "title": f"Train on {title} to predict {_comment(roles.target)[:20]}.",
        "imports": ", ".join(sorted([face, "Pipeline", *fields])),
        "rows": _bracketed(f"rows = {opener}(", [_text(url), *(['[image, ".*"]'] if declared else [])], ")"),
        "target": _text(roles.target),
        "split": _text(roles.split or ""),
        "left_out": "\n".join(f"# Left out: {_comment(name)} ({reason})." for name, reason in roles.reasons.items()),
        "filled": ", ".join(_stars(roles, "NUMBERS", "FLAGS")),
        "lists": ", ".join(_stars(roles, "LISTS", "FLOATS")),
        "image": _text(image.name if image else ""),
        "codec": image.image or "" if image else "",
        "channels": str(_channels(image)) if image else "",
        "fitted": ", ".join([*scaled, *_stars(roles, "CATEGORIES"), *target]),
        "scaled": ", ".join([*scaled, *target]),
        "sizes": "\n".join(f"SIZES {'|' if number else ''}= {each}" for number, each in enumerate(_sizes(roles))),
        "packed": _joined(packed),
        "single": _joined(_stars(roles, "CATEGORIES", "KEYS")),
        "several": _joined(_stars(roles, "LISTS") + (["*TOKENS"] if roles.of("text") else [])),
        "matrix": _text(_matrix(roles)),
        "joined": f"batch[{_text(_matrix(roles))}]" if _is_plain(roles) else "torch.cat(parts, 1)",
        "outputs": ", ".join(outputs),
        "width": str(_width(roles)),
        "inputs": str(_inputs(roles)),
        "layers": ", ".join([*(["bags"] if _sizes(roles) else []), *(["layers"] if image else []), "head"]),
        "file": re.sub(r"\W+", "_", roles.target).strip("_")[:_LONGEST_NAME] or "model",
    }


def _stars(roles: Roles, *lists: str) -> list[str]:
    return [f"*{name}" for name in lists if roles.of(_LISTS[name])]


def _joined(stars: list[str]) -> str:
    """Several lists as one, as code."""
    return stars[0].removeprefix("*") if len(stars) == 1 else f"[{', '.join(stars)}]"


def _packed(roles: Roles) -> list[str]:
    """The lists of columns that one matrix holds."""
    return _stars(roles, "NUMBERS", "FLAGS") + (["*CLOCK"] if roles.of("time") else [])


def _is_plain(roles: Roles) -> bool:
    """Whether the matrix is all that the model takes, as it is."""
    odd = any(column.odd for column in roles.of("number"))
    return bool(_packed(roles)) and _inputs(roles) == _width(roles) and not odd


def _sizes(roles: Roles) -> list[str]:
    """How many codes each column has that is coded, as code."""
    learned = ["{name: len(stats[name].values) + 1 for name in CATEGORIES}"] if roles.of("category") else []
    hashed = _stars(roles, "KEYS", "LISTS")
    learned += [f"dict.fromkeys({_joined(hashed)}, 10_000)"] if hashed else []
    return [*learned, *(["dict.fromkeys(TOKENS, 256)"] if roles.of("text") else [])]


def _width(roles: Roles) -> int:
    """How many columns the matrix has."""
    return len(roles.of("number", "flag")) + 2 * len(roles.of("time"))


def _inputs(roles: Roles) -> int:
    """How many numbers the head of the model takes."""
    arrays = sum(math.prod(axis or 0 for axis in column.shape) for column in roles.of("array"))
    coded = 16 * len(roles.of("category", "hashed", "codes", "text"))
    return _width(roles) + arrays + coded + 32 * len(roles.of("image")) + len(roles.of("floats"))


def _matrix(roles: Roles) -> str:
    """A name that no column has."""
    name = "numbers"
    while any(column.name == name for column in roles.columns):
        name += "_"
    return name


def _decimals(roles: Roles) -> list[str]:
    return _names(each for each in roles.columns if each.dtype == "decimal" and each.name not in roles.reasons)


def _names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


def _channels(image: Column) -> int:
    return image.shape[2] or 3 if image.shape else 3


def _bracketed(before: str, items: Iterable[str], after: str) -> str:
    """One line, or one for each item if it is too long."""
    lines = list(items)
    line = before + ", ".join(lines) + after
    return line if len(line) <= _WIDTH else "\n".join([before, *(f"    {item}," for item in lines), after])


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


_ROWS = '''\
|"""$title Run it again to continue where it stopped."""
|
torch|from pathlib import Path
torch|
keras|import keras
time|import numpy as np
torch|import torch
|from parquetry import $imports
keras|from parquetry.tf_plugin.keras import ResumeTraining
torch|from torch import nn
|
|TARGET = $target
long_split|SPLIT = $split
number|$NUMBERS
flag|$FLAGS
decimals|$DECIMALS
category|$CATEGORIES
hashed|$KEYS
codes|$LISTS
floats|$FLOATS
floats|LENGTHS = [f"{name}__length" for name in FLOATS]
text|$TEXTS
text|TOKENS = [f"{name}_tokens" for name in TEXTS]
array|$ARRAYS
image|IMAGE = $image
time|$TIMES
time|CLOCK = [f"{name}_{unit}" for name in TIMES for unit in ("hour", "day")]
left_out|$left_out
|
declared|codec = CompressedImageCodec("$codec", convert=True)
declared|image = UnischemaField(IMAGE, "uint8", (None, None, 3), codec)
|$rows
decimals|rows = rows.decimals("float64", *DECIMALS)
null_lists|rows = rows.nulls("mask", $lists)
null_target|rows = rows.nulls("drop", TARGET)
classes_target|rows = rows.encode(TARGET)
split !long_split|train, validation = (rows.hash_split($split, [0.8, 0.2], n) for n in (0, 1))
long_split|train, validation = (rows.hash_split(SPLIT, [0.8, 0.2], n) for n in (0, 1))
!split|train, validation = rows.take(len(rows) * 4 // 5), rows.skip(len(rows) * 4 // 5)
number category array number_target|stats = train.fit($fitted)  # of the training part
category hashed codes text|$sizes
classes_target|CLASSES = len(rows.vocabulary(TARGET))
|
|
time|def clock(batch):
time|    """Return the hour and the weekday (Monday is 0) of each time, from 0 to 1."""
time|    seconds = [batch[name].astype("datetime64[s]").astype(np.int64) for name in TIMES]
time|    parts = [(s // 3_600 % 24 / 24, (s // 86_400 + 3) % 7 / 7) for s in seconds]
time|    return dict(zip(CLOCK, np.float32(parts).reshape(len(CLOCK), -1), strict=True))
|
|
text|def tokens(text):
text|    """Return token ids from 0 to 255. Put your own tokenizer here."""
text|    return list(text.encode()[:512])
|
|
|def features(part):
time|    new = [UnischemaField(name, np.float32) for name in CLOCK]
time|    part = part.cast("datetime64[us]", TIMES).transform(clock, adds=new, batched=True)
category|    for name in CATEGORIES:  # what is null or new in validation has the last code
category|        part = part.encode(name, unknown=SIZES[name] - 1, null="unknown", stats=stats)
hashed|    part = part.hash_encode(*KEYS, buckets=10_000).nulls("fill", *KEYS, value=10_000)
codes|    part = part.hash_encode(*LISTS, buckets=10_000).pad(*LISTS, value=10_000)
text|    for name, to in zip(TEXTS, TOKENS, strict=True):
text|        part = part.tokenize(tokens, name, to=to, nulls="empty").pad(to, value=256)
floats|    part = part.pad(*FLOATS)
image|    part = part.resize(IMAGE, (128, 128))
colors|    part = part.normalize(IMAGE, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
image !colors|    part = part.normalize(IMAGE)
number array number_target|    part = part.standardize($scaled, stats=stats)
nulls|    part = part.nulls("fill", $filled, value=0)  # the mean
matrix|    part = part.pack($matrix, $packed, "float32")
|    return part.select($outputs)
|
|
'''

_TORCH = """\
|def loss_of(batch):
odd|    parts = [batch[$matrix].nan_to_num()]
matrix !odd !plain|    parts = [batch[$matrix]]
!matrix|    parts = []
category hashed codes text|    for name, bag in zip(SIZES, bags, strict=True):
category hashed codes text|        parts.append(bag(batch[name].view(len(batch[name]), -1)))
floats|    for name, length in zip(FLOATS, LENGTHS, strict=True):
floats|        parts.append((batch[name].sum(1) / batch[length].clamp(min=1)).float()[:, None])
array|    parts += [batch[name].flatten(1) for name in ARRAYS]
image|    parts.append(layers(batch[IMAGE].permute(0, 3, 1, 2)))
classes_target|    return nn.functional.cross_entropy(head($joined), batch[TARGET])
!classes_target|    output = head($joined)[:, 0]
binary_target|    return nn.functional.binary_cross_entropy_with_logits(output, batch[TARGET].float())
number_target|    return nn.functional.mse_loss(output, batch[TARGET])
|
|
|def save():
|    torch.save({k: v.state_dict() for k, v in saved.items()}, "$file.new")
|    Path("$file.new").replace("$file.pt")  # whole, or not at all
|
|
|device = "cuda" if torch.cuda.is_available() else "cpu"
category hashed codes text|bags = nn.ModuleList(nn.EmbeddingBag(n + 1, 16, padding_idx=n) for n in SIZES.values())
image|layers = nn.Sequential(
image|    nn.Conv2d($channels, 16, 5, stride=4),
image|    nn.ReLU(),
image|    nn.Conv2d(16, 32, 3, stride=2),
image|    nn.ReLU(),
image|    nn.AdaptiveAvgPool2d(1),
image|    nn.Flatten(),
image|)
classes_target|head = nn.Sequential(nn.Linear($inputs, 64), nn.ReLU(), nn.Linear(64, CLASSES))
!classes_target|head = nn.Sequential(nn.Linear($inputs, 64), nn.ReLU(), nn.Linear(64, 1))
|model = nn.ModuleList([$layers]).to(device)
|optimizer = torch.optim.AdamW(model.parameters())
|shuffled = ParquetIterable(features(train)).shuffle(10_000, seed=7).batch(256)
|batches = shuffled.prefetch_to_device(device)
|saved = {"model": model, "optimizer": optimizer, "batches": batches}
|if Path("$file.pt").exists():
|    for name, state in torch.load("$file.pt", map_location=device).items():
|        saved[name].load_state_dict(state)
|for step, batch in enumerate(batches, start=1):
|    loss = loss_of(batch)
|    optimizer.zero_grad()
|    loss.backward()
|    optimizer.step()
|    if step % 100 == 0:
|        print(f"step {step}: loss {loss.item():.4f}")
|        save()
|save()
|
|held_out = ParquetIterable(features(validation)).batch(256)
|with torch.no_grad():
|    losses = [loss_of(batch) for batch in held_out.prefetch_to_device(device)]
|print(f"validation loss: {sum(losses) / len(losses):.4f}")
"""

_KERAS = """\
codes text|def bag(codes, padding):
codes text|    \"\"\"Return the mean embedding of the codes in each list, without the padding.\"\"\"
codes text|    used = keras.ops.cast(codes != padding, "float32")[:, :, None]
codes text|    vectors = keras.layers.Embedding(padding + 1, 16)(codes) * used
codes text|    return keras.ops.sum(vectors, 1) / keras.ops.maximum(keras.ops.sum(used, 1), 1)
|
|
|inputs, parts = {}, []
matrix|inputs[$matrix] = keras.Input(($width,))
matrix !odd|parts.append(inputs[$matrix])
odd|parts.append(keras.ops.nan_to_num(inputs[$matrix]))
category hashed|for name in $single:
category hashed|    inputs[name] = keras.Input((), dtype="int64")
category hashed|    parts.append(keras.layers.Embedding(SIZES[name] + 1, 16)(inputs[name]))
codes text|for name in $several:
codes text|    inputs[name] = keras.Input((None,), dtype="int64")
codes text|    parts.append(bag(inputs[name], SIZES[name]))
floats|for name, length in zip(FLOATS, LENGTHS, strict=True):
floats|    inputs[name], inputs[length] = keras.Input((None,)), keras.Input(())
floats|    total = keras.ops.sum(inputs[name], axis=1, keepdims=True)
floats|    parts.append(total / keras.ops.maximum(inputs[length], 1)[:, None])
array|for name in ARRAYS:
array|    inputs[name] = keras.Input(rows.schema[name].shape)
array|    parts.append(keras.layers.Flatten()(inputs[name]))
image|inputs[IMAGE] = keras.Input((128, 128, $channels))
image|layer = keras.layers.Conv2D(16, 5, 4, activation="relu")(inputs[IMAGE])
image|layer = keras.layers.Conv2D(32, 3, 2, activation="relu")(layer)
image|parts.append(keras.layers.GlobalAveragePooling2D()(layer))
|hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(parts))
binary_target|output = keras.layers.Dense(1, "sigmoid")(hidden)
classes_target|output = keras.layers.Dense(CLASSES, "softmax")(hidden)
number_target|output = keras.layers.Dense(1)(hidden)
|model = keras.Model(tuple(inputs.values()), output)
binary_target|model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
classes_target|model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
number_target|model.compile("adam", "mse")
|
|shuffled = ParquetDataset(features(train)).shuffle(10_000, seed=7).batch(256)
|shuffled = shuffled.as_tuple(tuple(inputs), TARGET)
|held_out = ParquetDataset(features(validation)).batch(256)
|held_out = held_out.as_tuple(tuple(inputs), TARGET)
|resume = ResumeTraining(shuffled, "${file}_checkpoints", save_every=100)
|# One epoch each time, or what an interruption left of one. The dataset shuffles.
|first = resume.initial_epoch
|model.fit(
|    shuffled.prefetch(2),
|    validation_data=held_out.prefetch(2),
|    shuffle=False,
|    initial_epoch=first,
|    epochs=first + 1,
|    callbacks=[resume],
|)
"""
