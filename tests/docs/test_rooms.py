"""Each room has a page that names all its modules, once; the table of rooms has the order of the import rule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "tf_plugin", "torch_plugin")
_FOLDER = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:/\w+)*)/`")
_NAME = re.compile(r"`([\w/]+\.py)`")
_PATH = re.compile(r"`([\w/]+\.(?:py|cc|h))`")


def _named(page: Path) -> Iterator[str]:
    """Yields the modules in the first cells of a page's tables. A line that begins with a folder gives their folder."""
    folder = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        begins = _FOLDER.match(line)
        if begins is not None:
            folder = begins[1]
        elif line.startswith("|"):
            yield from (f"{folder}/{name}" for name in _NAME.findall(line.split("|")[1]))


def test_every_module_is_named_on_the_page_of_its_room_and_on_no_other() -> None:
    named = Counter(name for page in sorted((ROOT / "docs/rooms").glob("*.md")) for name in _named(page))
    files = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    modules = {path.as_posix() for path in files if path.name != "__init__.py" and "built" not in path.parts}
    assert sorted(modules - named.keys()) == [], "name it in docs/rooms, with a few words on what it holds"
    assert sorted(named.keys() - modules) == [], "docs/rooms names a module that does not exist"
    assert [name for name, times in named.items() if times > 1] == []


def test_the_table_of_rooms_has_the_order_of_the_import_rule() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.findall(r'"([\w |]+)"', settings.partition("layers = [")[2].partition("]")[0])
    depth = {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*`common/.*?) \|", page.split("## Rooms")[1].split("##")[0], re.MULTILINE)
    rooms = [[name.removesuffix("/").removesuffix(".py") for name in _rooms_of(cell)] for cell in cells]
    assert sorted(room for row in rooms for room in row) == sorted(depth)
    depths = [depth[room] for row in rooms for room in row]
    assert depths == sorted(depths)
    assert [room for room in depth if not (ROOT / f"docs/rooms/{room}.md").exists()] == []


def test_the_pages_about_the_inside_name_only_files_that_there_are() -> None:
    folders = (*PACKAGES, "parquetry", "tests", "benchmarks", "docs")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    pages = [ROOT / "docs/architecture.md", ROOT / "docs/development.md", *(ROOT / "docs/rooms").glob("*.md")]
    paths = {(page.name, path) for page in pages for path in _PATH.findall(page.read_text(encoding="utf-8"))}
    missing = [(page, path) for page, path in paths if not any(file.endswith(f"/{path}") for file in files)]
    assert sorted(missing) == []


def _rooms_of(cell: str) -> list[str]:
    return [name.removeprefix("common/") for name in re.findall(r"`([\w/.]+)`", cell)]
