"""What the site shows where it needs other text than GitHub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="in the extra 'docs' alone")
markdown = pytest.importorskip("markdown", reason="in the extra 'docs' alone")

DOCS = Path(__file__).resolve().parents[2] / "docs"


def hooks() -> Any:
    """Returns the module of the site's hooks."""
    described = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    assert described is not None
    assert described.loader is not None
    module: Any = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def shown(page: Path) -> str:
    """Returns a page as the site shows it, without its theme."""
    module = hooks()
    file = SimpleNamespace(file=SimpleNamespace(src_uri=str(page.relative_to(DOCS))))
    text = module.on_page_markdown(page.read_text(encoding="utf-8"), file, SimpleNamespace(repo_url="https://x"), None)
    html: str = markdown.markdown(text, extensions=["tables"])
    return html


def test_code_in_tables_has_no_backslash_before_a_pipe() -> None:
    pages = [page for page in sorted(DOCS.rglob("*.md")) if r"\|" in page.read_text(encoding="utf-8")]
    html = {page.name: shown(page) for page in pages}
    assert "<code>select(r&quot;(?!(a|b)$).*&quot;)</code>" in html["verbs.md"].replace('"', "&quot;")
    assert [name for name, text in html.items() if r"\|" in text] == []


def test_code_in_tables_breaks_after_dots_and_parentheses_alone() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="images.md"))
    html = "<p><code>a.b(c)</code></p><table><tr><td><code>data.load_state(state_of(x))</code> 1.5</td></tr></table>"
    shown = hooks().on_page_content(html, page, None, None)
    assert shown == html.replace("data.load_state(state_of(x))", "data.<wbr>load_state(<wbr>state_of(<wbr>x))")


def test_what_moved_leads_to_a_page_and_a_heading_that_are_there(tmp_path: Path) -> None:
    site = hooks()
    for old, new in site.MOVED.items():
        page, _, heading = new.partition("#")
        text = (DOCS / page).read_text(encoding="utf-8")
        headings = [
            line.lstrip("# ").lower().replace(".", "").replace(" ", "-") for line in text.splitlines() if "#" in line
        ]
        assert not heading or heading in headings, new
        assert "#" in old or not (DOCS / old).exists(), old
    site.on_post_build(SimpleNamespace(site_dir=tmp_path))
    address = "../../verbs/#every-verb-in-full"
    assert f'<a href="{address}">' in (tmp_path / "reference/verbs/index.html").read_text(encoding="utf-8")


def test_a_heading_that_moved_leads_to_its_new_page() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="pytorch.md"), url="pytorch/")
    files = SimpleNamespace(get_file_from_path=lambda path: SimpleNamespace(url=path.replace(".md", "/")))
    html = hooks().on_page_content("<p>", page, None, files)
    assert '"#state": "../pytorch-state/"' in html
    page.file.src_uri = "images.md"
    assert hooks().on_page_content("<p>", page, None, files) == "<p>"
