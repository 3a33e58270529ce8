"""What the site adds to the pages: README and changelog, links to files outside ``docs/``, and addresses that moved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
MOVED = {
    "at-scale.md#launchers": "launchers.md",
    "at-scale.md#row-groups-larger-than-the-memory-limit": "memory.md#row-groups-larger-than-the-memory-limit",
    "at-scale.md#signed-urls": "signed-urls.md",
    "at-scale.md#tfdata-service": "tensorflow-distributed.md#tfdata-service",
    "benchmarks.md#a-larger-machine": "notebook/2026-11-26-sixteen-processors.md",
    "benchmarks.md#method": "benchmarks-method.md#method",
    "benchmarks.md#the-distance-to-the-limit": "benchmarks-limit.md",
    "benchmarks.md#workloads": "benchmarks-method.md#workloads",
    "guarantees.md#damaged-and-hostile-files": "guarantees-faults.md#damaged-and-hostile-files",
    "guarantees.md#processes-that-die-or-hang": "guarantees-faults.md#processes-that-die-or-hang",
    "guarantees.md#stores-and-servers": "guarantees-servers.md#stores-and-servers",
    "guarantees.md#the-compiled-op": "guarantees-servers.md#the-compiled-op",
    "pytorch.md#ranks": "pytorch-ranks.md",
    "pytorch.md#samplers-of-your-own": "pytorch-trainers.md#samplers-of-your-own",
    "pytorch.md#state": "pytorch-state.md",
    "pytorch.md#trainers": "pytorch-trainers.md",
    "reference/verbs.md": "verbs.md#every-verb-in-full",
    "stats.md#into-logs-and-metrics": "monitoring.md#into-logs-and-metrics",
    "stats.md#while-it-runs": "monitoring.md#while-it-runs",
    "stores.md#signed-urls": "signed-urls.md",
    "tensorflow.md#inside-interleave": "tensorflow-distributed.md#inside-interleave",
    "tensorflow.md#multiple-processes": "tensorflow-distributed.md",
    "tensorflow.md#saving-and-resuming": "tensorflow-state.md#saving-and-resuming",
    "tuning.md#a-store-that-fails-for-a-moment": "stores.md#a-store-that-fails-for-a-moment",
    "tuning.md#a-store-that-is-far-away": "stores.md#a-store-that-is-far-away",
}
"""Where former pages and headings are now: links from elsewhere still lead there."""
CELL_CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the two pages that stand at the root of the repository."""
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave ``docs/`` lead to the repository. Code in tables loses backslashes that only GitHub needs."""
    at_root = page.file.src_uri in PAGES
    folder = ROOT if at_root else (ROOT / "docs" / page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        target = (folder / path).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[1].removeprefix("docs/") if at_root else match[1]
        if not target.exists():
            return match[1]  # which mkdocs then reports
        return f"{config.repo_url}/blob/main/{target.relative_to(ROOT)}{mark}{anchor}"

    lines = (
        CELL_CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in LINK.sub(linked, markdown).split("\n")
    )
    return "\n".join(lines).replace("<details>", "<details markdown>")


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Headings that moved to another page lead there. Code in tables may break after a dot, slash or parenthesis."""
    html = _CELL.sub(lambda cell: _CODE.sub(lambda code: _BREAKS.sub("<wbr>", code[0]), cell[0]), html)
    moved = {
        f"#{old.partition('#')[2]}": _address(new, page.url, files)
        for old, new in MOVED.items()
        if "#" in old and old.partition("#")[0] == page.file.src_uri
    }
    return html + f"<script>{_GO.format(json.dumps(moved))}</script>" if moved else html


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The link to the repository asks GitHub for no numbers: the site loads nothing from elsewhere."""
    return output.replace(_ASKS_GITHUB, "")


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Nor does the page for addresses that are not there."""
    return output_content.replace(_ASKS_GITHUB, "")


def on_post_build(config: Any) -> None:
    """Pages that moved have one in their place that leads to the new one."""
    for old, new in MOVED.items():
        if "#" not in old:
            folder = Path(config.site_dir, old.removesuffix(".md"))
            folder.mkdir(parents=True, exist_ok=True)
            path, mark, anchor = new.partition("#")
            up = "../" * len(Path(old).parts)
            address = f"{up}{path.removesuffix('.md')}/{mark}{anchor}"
            text = f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">{address}</a>\n'
            (folder / "index.html").write_text(text, encoding="utf-8")


_CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_BREAKS = re.compile(r"(?<=[./(])(?=\w)")
_ASKS_GITHUB = ' data-md-component="source"'
_GO = "const moved = {}[location.hash]; if (moved) location.replace(moved);"


def _address(page: str, base: str, files: Files) -> str:
    path, mark, anchor = page.partition("#")
    file = files.get_file_from_path(path)
    assert file is not None, path
    return get_relative_url(file.url, base) + mark + anchor
