"""Finds the files of a Hugging Face folder that belong to a split of a configuration.

It takes the paths of the files below the folder and the text of its README.md, and returns the paths that were asked
for. If the README lists configurations, they decide. Otherwise names do, and a folder that names no split is a
configuration. Files that belong to no split are left out, and a warning names them; rows of different splits are never
mixed.

Rules: https://huggingface.co/docs/hub/datasets-file-names-and-splits and
https://huggingface.co/docs/hub/datasets-manual-configuration.
"""

from __future__ import annotations

import logging
import posixpath
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..base.errors import DatasetError, PipelineError
from ..base.urls import clean_cause
from ..dataset.table import import_package
from ..storage.files import SHARD

ALL = "all"

_LOGGER = logging.getLogger(__name__)
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_ALIASES = {word: split for split, words in _KEYWORDS.items() for word in words}
_NAMES = {
    split: re.compile(rf"(?:.*[-._ 0-9])?(?:{'|'.join(words)})(?:[-._ 0-9].*)?", re.IGNORECASE | re.DOTALL)
    for split, words in _KEYWORDS.items()
}
_LISTS_CONFIGS = re.compile(r"""^["']?configs["']?\s*:""", re.MULTILINE)
_SHOWN = 5

Splits = dict[str, list[str]]


def files_of(what: str, paths: Sequence[str], readme: str, *, config: str | None, split: str | None) -> list[str]:
    """Returns the paths of a split: a name, a sum of names, ``"all"``, or ``None`` for the only one.

    Args:
        paths: the Parquet files, below the folder.
        readme: the text of the folder's README.md; empty if there is none.

    Raises:
        DatasetError: a split or configuration does not exist, or was not given although there are several; or the
            README cannot be used.
        PipelineError: the split is not text.
    """
    listed = _listed(what, readme)
    if listed:
        splits = _of_entry(what, paths, _chosen_entry(what, listed, config))
    else:
        folder = _chosen_folder(what, paths, config)
        splits = _by_name(what, [path for path in paths if _folder_of(path) == folder], folder)
    return _of_split(what, splits, split)


def _of_split(what: str, splits: Splits, split: object) -> list[str]:
    if split is not None and not isinstance(split, str):
        raise PipelineError(
            f"{what}: expected split= as text, got {split!r}. If these are fields, write fields={split!r}."
        )
    if split is None and len(splits) > 1:
        raise DatasetError(f"{what}: expected split= one of {sorted(splits)} (or 'all'), because there are several.")
    names = [*splits] if split is None or split == ALL else [name.strip() for name in split.split("+")]
    owner: dict[str, str] = {}
    for name in names:
        known = _known_name(splits, name)
        if known is None:
            raise DatasetError(f"{what}: expected split= one of {sorted(splits)}, got '{name}'.")
        if not splits[known]:
            raise DatasetError(
                f"{what}: expected Parquet files of split '{known}' where README.md says, found none. Download them, "
                "or repair README.md."
            )
        for path in splits[known]:
            if owner.get(path) == known:
                raise DatasetError(f"{what}: expected each split once, got '{name}' twice in split='{split}'.")
            if path in owner:
                raise DatasetError(
                    f"{what}: expected splits without common files, got {path} in '{owner[path]}' and in '{known}'. "
                    "Read one of them at a time."
                )
            owner[path] = known
    return sorted(owner)


def _known_name(splits: Splits, name: str) -> str | None:
    """The split that a name means: itself, or the one that has the same standard name ('dev' is 'validation')."""
    if name in splits:
        return name
    alike = [known for known in splits if name in _ALIASES and _ALIASES.get(known) == _ALIASES[name]]
    return alike[0] if len(alike) == 1 else None


# --- by name ---


def _by_name(what: str, paths: Sequence[str], folder: str = "") -> Splits:
    """Groups files by the first rule that applies to any of them. The others are left out, with a warning."""
    inside = {path: _below(path, folder) for path in paths}
    only_shards = all(_shard(path, "") for path in inside.values())  # the folder is a ``data`` folder itself
    rules: tuple[Callable[[str], Iterable[str]], ...] = (
        lambda path: _shard(path, "data"),
        lambda path: _shard(path, "") if only_shards else [],
        lambda path: _named(posixpath.dirname(path).split("/")),
        lambda path: _named([posixpath.basename(path)]),
        lambda path: ["train"],
    )
    for rule in rules:
        by_path = {path: sorted(set(rule(inside[path]))) for path in paths}
        if any(by_path.values()):
            break
    splits: Splits = {}
    for path, names in by_path.items():
        if len(names) > 1:
            raise DatasetError(
                f"{what}: expected one split in the name of {path}, got {names}. Rename it, or list the splits under "
                "'configs:' in README.md."
            )
        for name in names:
            splits.setdefault(name, []).append(path)
    left = [path for path, names in by_path.items() if not names]
    if left:
        shown = ", ".join(left[:_SHOWN]) + (", ..." if len(left) > _SHOWN else "")
        _LOGGER.warning(
            "%s: left out %d of %d files, because their names say no split and those of others do: %s. To read them, "
            "name them in the URL, or list them under 'configs:' in README.md.",
            what,
            len(left),
            len(paths),
            shown,
        )
    return splits


def _shard(path: str, folder: str) -> list[str]:
    match = SHARD.fullmatch(posixpath.basename(path))
    return [] if match is None or posixpath.dirname(path) != folder else [match["split"]]


def _named(names: Iterable[str]) -> set[str]:
    """The standard splits that names of files or folders contain as a word."""
    return {split for name in names for split, pattern in _NAMES.items() if pattern.fullmatch(name)}


def _folder_of(path: str) -> str:
    """The configuration of a file: its folders that are not ``data``, a partition, or named after a split."""
    folders = [part for part in path.split("/")[:-1] if "=" not in part]
    return "/".join(part for part in folders if part != "data" and not _named([part]))


def _below(path: str, folder: str) -> str:
    """The path without the folders of its configuration."""
    own = folder.split("/") if folder else []
    *folders, name = path.split("/")
    for part in own:
        folders.remove(part)
    return "/".join([*folders, name])


def _chosen_folder(what: str, paths: Sequence[str], config: str | None) -> str:
    folders = {_folder_of(path) or "default": _folder_of(path) for path in paths}
    if config is None and len(folders) == 1:
        return next(iter(folders.values()))
    if config is None or config not in folders:
        raise _no_config(what, folders, config)
    return folders[config]


def _no_config(what: str, names: Iterable[str], config: str | None) -> DatasetError:
    return DatasetError(
        f"{what}: expected config= one of {sorted(names)}, got {config!r}. Files of different configurations may hold "
        "different rows."
    )


# --- by the README ---


def _listed(what: str, readme: str) -> dict[str, Mapping[str, Any]]:
    """The configurations that a README lists, by name; empty if it lists none."""
    lines = readme.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---" or "---" not in lines[1:]:
        return {}
    block = "\n".join(lines[1 : lines.index("---", 1)])
    if not _LISTS_CONFIGS.search(block):
        return {}
    yaml = import_package("yaml", extra="huggingface", what=f"{what}: README.md lists configurations")
    try:
        configs = yaml.safe_load(block)["configs"] or []
        return {_text(entry["config_name"]): _checked(entry) for entry in configs}
    except (yaml.YAMLError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DatasetError(
            f"{what}: expected README.md to list each configuration with a 'config_name' and 'data_files', got: "
            f"{' '.join(str(error).split())}. Repair it, or name the files in the URL."
        ) from clean_cause(error)


def _checked(entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise TypeError(reprlib.repr(entry))
    if not isinstance(entry.get("data_dir") or "", str):
        raise TypeError(f"data_dir {reprlib.repr(entry['data_dir'])}")
    return entry


def _text(value: object) -> str:
    """A name, which YAML may take for a number. Other values may be endless once they are text."""
    if not isinstance(value, str | int | float):
        raise TypeError(reprlib.repr(value))
    return str(value)


def _chosen_entry(what: str, listed: Mapping[str, Mapping[str, Any]], config: str | None) -> Mapping[str, Any]:
    if config is None:
        marked = [name for name, entry in listed.items() if entry.get("default") is True]
        config = next((name for name in (*marked, "default") if name in listed), None)
        config = next(iter(listed)) if len(listed) == 1 else config
    if config is None or config not in listed:
        raise _no_config(what, listed, config)
    return listed[config]


def _of_entry(what: str, paths: Sequence[str], entry: Mapping[str, Any]) -> Splits:
    folder = posixpath.normpath(entry.get("data_dir") or ".").strip("/")
    folder = "" if folder == "." else folder
    if entry.get("data_files") is None:
        inside = [path for path in paths if path.startswith(f"{folder}/" if folder else "")]
        if not inside:
            raise DatasetError(f"{what}: expected Parquet files in data_dir '{folder}' of README.md, found none.")
        below = {path[len(folder) :].lstrip("/"): path for path in inside}
        return {name: [below[path] for path in found] for name, found in _by_name(what, [*below]).items()}
    splits: Splits = {}
    for name, patterns in _data_files(what, entry["data_files"]).items():
        all_parts = [_parts(what, posixpath.join(folder, pattern)) for pattern in patterns]
        splits[name] = [path for path in paths if any(_matches(path.split("/"), parts) for parts in all_parts)]
    return splits


def _data_files(what: str, stated: object) -> dict[str, list[str]]:
    """The patterns of each split. Patterns without a split are those of ``train``."""
    items: list[Any] = stated if isinstance(stated, list) else [stated]
    if not any(isinstance(item, Mapping) for item in items):
        items = [{"split": "train", "path": items}]
    files: dict[str, list[str]] = {}
    for item in items:
        path = item.get("path") if isinstance(item, Mapping) else None
        patterns: list[Any] = path if isinstance(path, list) else [path]
        try:
            name = _text(item["split"])
            if not patterns or not all(isinstance(each, str) for each in patterns) or name in files:
                raise TypeError(reprlib.repr(item))
        except (LookupError, TypeError) as error:
            raise DatasetError(
                f"{what}: expected data_files in README.md to be paths, or pairs of a split and its paths, each split "
                f"once, got {error}. Repair it, or name the files in the URL."
            ) from clean_cause(error)
        files[name] = patterns
    return files


def _parts(what: str, pattern: str) -> list[str]:
    """The parts of a pattern of data_files, one for each level."""
    parts = posixpath.normpath(pattern).split("/")
    if ":" in parts[0] or parts[0] in ("", ".."):
        raise DatasetError(
            f"{what}: expected data_files in README.md that are below it, got '{pattern}'. Name those files in the URL."
        )
    return parts


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a pattern names a file. Unlike in a URL, a folder that matches does not stand for the files in it."""
    if not names or not parts:
        return not names and not parts
    if parts[0] == "**":
        return len(parts) == 1 or any(_matches(names[start:], parts[1:]) for start in range(len(names)))
    return fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
