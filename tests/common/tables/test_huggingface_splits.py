"""Files are grouped into splits as the datasets package groups them, and never into two."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.tables.huggingface_splits import files_of

WHAT = "Hugging Face folder 'x'"


def chosen(paths: Sequence[str], split: str | None = None, *, config: str | None = None, readme: str = "") -> list[str]:
    return files_of(WHAT, paths, readme, config=config, split=split)


def listing(*entries: dict[str, Any]) -> str:
    """A README that lists configurations; JSON is YAML."""
    lines = "\n".join(f"- {json.dumps(entry)}" for entry in entries)
    return f"---\nlicense: mit\nconfigs:\n{lines}\n---\n# Rows\n"


# What `datasets` makes of such folders, but "sub/..." alone, which it does not take for a configuration.
FOLDERS: dict[str, dict[str, list[str]]] = {
    "shards in data": {
        "train": ["data/train-00000-of-00001.parquet"],
        "random": ["data/random-00000-of-00001.parquet"],
        "": ["validation.parquet", "test/x.parquet", "data/all.parquet"],
    },
    "only shards": {
        "train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        "train_noisy": ["train_noisy-00000-of-00001.parquet"],
        "train.test": ["train.test-00000-of-00001.parquet"],
    },
    "folders before files": {
        "train": ["train/test_0.parquet", "my-train/x.parquet"],
        "validation": ["data/val-1/0000.parquet"],
        "": ["test.parquet"],
    },
    "words in names": {
        "train": ["random_train.parquet", "data/Training 2.parquet", "train_noisy-00000-of-00001.parquet"],
        "validation": ["my_dev_file.parquet", "valid.parquet"],
        "test": ["eval.parquet", "my-testing-set.parquet"],
        "": ["contest.parquet", "all.parquet", "pretrain.parquet"],
    },
    "no words": {"train": ["0000.parquet", "data/contest.parquet", "devel.parquet"]},
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_first_rule_that_applies_decides_and_others_are_left_out(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = FOLDERS[folder]
    paths = [path for found in expected.values() for path in found]
    splits = [name for name in expected if name]
    assert {name: chosen(paths, name) for name in splits} == {name: sorted(expected[name]) for name in splits}
    for left in expected.get("", ()):
        assert left in caplog.text
    assert caplog.text or "" not in expected
    assert chosen(paths, "all") == sorted(path for name in splits for path in expected[name])


def test_a_name_of_two_splits_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"expected one split in the name of train_test\.parquet, got \['test', 'tr"):
        chosen(["train_test.parquet", "test.parquet"])


def test_a_split_has_several_names() -> None:
    assert chosen(["dev.parquet", "train.parquet"], "val") == ["dev.parquet"]
    assert chosen(["data/dev-00000-of-00001.parquet"], "validation") == ["data/dev-00000-of-00001.parquet"]


def test_configurations_are_folders_that_name_no_split() -> None:
    paths = ["en/train/0.parquet", "en/data/test-00000-of-00001.parquet", "de/train-00000-of-00001.parquet"]
    with pytest.raises(DatasetError, match=r"expected config= one of \['de', 'en'\], got None"):
        chosen(paths)
    assert chosen(paths, config="de") == paths[2:]
    assert chosen(paths, "test", config="en") == paths[1:2]


def test_the_readme_decides() -> None:
    pytest.importorskip("yaml")
    paths = ["a.parquet", "b/c/d.parquet", "b/e.parquet", "data/train-0.parquet", "data/train_noisy-0.parquet"]
    readme = listing(
        {"config_name": "clean", "data_files": [{"split": "train", "path": "data/train-*"}], "default": True},
        {"config_name": "noisy", "data_files": "data/train_noisy-*"},
        {
            "config_name": "letters",
            "data_files": [{"split": "train", "path": ["./a.parquet", "b/*"]}, {"split": "2024", "path": "b/**"}],
        },
        {"config_name": "folder", "data_dir": "b"},
        {"config_name": "gone", "data_files": [{"split": "train", "path": "x/*"}, {"split": "test", "path": "a.*"}]},
        {"config_name": "outside", "data_files": "../other/*.parquet"},
        {"config_name": "url", "data_files": "hf://datasets/a/b/*.parquet"},
        {"config_name": "twice", "data_files": [{"split": "a", "path": "a"}, {"split": "a", "path": "b"}]},
    )
    assert chosen(paths, readme=readme) == ["data/train-0.parquet"]
    assert chosen(paths, readme=readme, config="noisy") == ["data/train_noisy-0.parquet"]
    assert chosen(paths, "train", readme=readme, config="letters") == ["a.parquet", "b/e.parquet"]
    assert chosen(paths, "2024", readme=readme, config="letters") == ["b/c/d.parquet", "b/e.parquet"]
    assert chosen(paths, readme=readme, config="folder") == ["b/c/d.parquet", "b/e.parquet"]
    assert chosen(paths, "test", readme=readme, config="gone") == ["a.parquet"]
    for config, split, reason in (
        ("none", None, r"expected config= one of \['clean', 'folder', .*\], got 'none'"),
        ("letters", None, r"expected split= one of \['2024', 'train'\] \(or 'all'\), because there are several"),
        ("letters", "all", r"expected splits without common files, got b/e\.parquet in 'train' and in '2024'"),
        ("gone", "train", r"expected Parquet files of split 'train' where README\.md says, found none\. Download"),
        ("outside", None, r"that are below it, got '\.\./other/\*\.parquet'\. Name those files in the URL"),
        ("url", None, "that are below it, got 'hf://datasets"),
        ("twice", "a", "each split once, got"),
    ):
        with pytest.raises(DatasetError, match=reason):
            chosen(paths, split, readme=readme, config=config)


@pytest.mark.parametrize(
    "configs", ["[1]", "[{}]", "7", '[{"config_name": "a", "data_dir": [1]}]', "[" * 5_000, "{", '["a", {'], ids=str
)
def test_a_readme_that_cannot_be_used_is_an_error(configs: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(DatasetError, match=r"expected README\.md to list each configuration .* Repair it, or name the"):
        chosen(["a.parquet"], readme=f"---\nconfigs: {configs}\n---\n")


def test_a_readme_that_is_endless_as_text_is_an_error() -> None:
    pytest.importorskip("yaml")
    bomb = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 1}]" for n in range(30))
    for entry in ("*x29", "{config_name: *x29}", "{config_name: a, data_dir: *x29}"):
        with pytest.raises(DatasetError, match=r"expected README\.md to list each configuration"):
            chosen(["a.parquet"], readme=f"---\n{bomb}\nconfigs: [{entry}]\n---\n")
    for files in ("*x29", "[{split: *x29, path: a}]", "[{split: a, path: *x29}]"):
        with pytest.raises(DatasetError, match=r"expected data_files in README\.md to be paths, or pairs"):
            chosen(["a.parquet"], readme=f"---\n{bomb}\nconfigs: [{{config_name: a, data_files: {files}}}]\n---\n")


@pytest.mark.parametrize(
    "readme", ["# Rows", "---\nlicense: mit\n", "---\nlicense: [mit\n---\n", "---\n---\nconfigs:\n"]
)
def test_a_readme_without_configurations_says_nothing(readme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert chosen(["train.parquet"], readme=readme) == ["train.parquet"]


def test_a_readme_needs_a_package_that_the_extra_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(
        DatasetError, match=r"README\.md lists configurations: .*pip install 'parquetry\[huggingface\]'"
    ):
        chosen(["train.parquet"], readme=listing({"config_name": "default", "data_files": "train*"}))


def test_a_readme_beside_the_files_is_read(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    for number, name in enumerate(("a", "b")):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{name}.parquet")
    entry = {
        "config_name": "default",
        "data_files": [{"split": "train", "path": "a*"}, {"split": "test", "path": "b*"}],
    }
    (tmp_path / "README.md").write_text(listing(entry))
    assert [int(row["id"]) for row in Pipeline.from_huggingface_parquet(tmp_path, "test")] == [1]
    assert [int(row["id"]) for row in Pipeline.from_huggingface_parquet(tmp_path / "b.parquet")] == [1]
    (tmp_path / "README.md").write_bytes(b"---\n\xff")
    with pytest.raises(DatasetError, match=r"expected a readable README\.md, which may list its splits, got"):
        Pipeline.from_huggingface_parquet(tmp_path, "test")


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("data/*", "data/a", True),
        ("data/*", "data/b/a", False),
        ("data/**", "data/b/a", True),
        ("**/a", "a", True),
        ("**/a", "b/c/a", True),
        ("**/a", "ba", False),
        ("**", "b/c", True),
        ("b/**/a", "b/a", True),
        ("b/**/a", "b/c/d/a", True),
    ],
)
def test_two_stars_match_any_folders(pattern: str, path: str, matches: bool) -> None:
    pytest.importorskip("yaml")
    readme = listing({"config_name": "default", "data_files": [{"split": "a", "path": [pattern, "other"]}]})
    assert chosen([path, "other"], "a", readme=readme) == sorted([path, "other"] if matches else ["other"])
