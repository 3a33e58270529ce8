"""A browser shows the site, HTML reports and the views of notebooks in wide and narrow windows, whole and without errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build
from PIL import Image
from processes import PATIENCE_S

from parquetry import Pipeline, describe
from parquetry.common.apps.reports import html_report, inspect

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in the extra 'dev' alone")

ROOT = Path(__file__).resolve().parents[2]
REAL = str(ROOT / "tests" / "data" / "petastorm" / "0.12.1")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing leaves this machine
    "--no-first-run",
]
WIDE, NARROW = 1280, 400

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on this machine: it is looked for as chromium or google-chrome"
    ),
]

FAULTS = """() => {
    document.querySelectorAll("details").forEach(each => each.open = true);
    const right = each => each.getBoundingClientRect().right;
    const overflow = each => getComputedStyle(each).overflowX;
    const scrolls = each => ["auto", "scroll"].includes(overflow(each));
    const isCut = code => {
        const inner = [...code.querySelectorAll("*")].find(scrolls);
        const edge = inner ? right(inner) : code.getBoundingClientRect().left + code.scrollWidth;
        for (let box = code; box !== document.body; box = box.parentElement) {
            if (scrolls(box)) return false;
            if ((box === code || overflow(box) !== "visible") && edge > right(box) + 1) return true;
        }
        return false;
    };
    const width = document.documentElement.scrollWidth;
    return [
        ...(width > innerWidth ? [`${width} pixels are wider than the window of ${innerWidth}`] : []),
        ...[...document.querySelectorAll("pre")].filter(isCut).map(code => `cut: ${code.textContent.slice(0, 80)}`),
    ];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Returns Chromium, with an empty profile."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site() -> Path:
    """Builds the site as `make docs` does, with this Python."""
    installed = f"{sys.prefix}/.installed"  # or make would install everything first
    command = ["make", f"--old-file={installed}", f"VENV={sys.prefix}", "docs"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_S)
    return ROOT / "build" / "site"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes HTML reports, and a page with all that describes itself in a notebook."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "favicon.ico").touch()  # which browsers ask every server for
    built = build(folder / "built", [[20, 20], [20]])
    (folder / "built.html").write_text(html_report(built.url), encoding="utf-8")
    (folder / "real.html").write_text(html_report(REAL), encoding="utf-8")
    images = Pipeline(built.url, ["id", "image"])
    iterator = iter(built.pipeline().batch(8))
    batch = next(iterator)
    views = [
        *(built.pipeline(), built.pipeline().shuffle(60, seed=7).batch(8), images.ngram(length=4), images.batch(6)),
        images.transform(lambda row: row["idd"]),
        *(images.element, built.pipeline().describe(), describe(batch), iterator.stats(), inspect(built.url)),
    ]
    cells = "".join(f"<div>{view._repr_html_()}</div>" for view in views)
    page = f'<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">{cells}'
    (folder / "notebook.html").write_text(page, encoding="utf-8")
    return folder


def faults(browser: Any, folder: Path, width: int) -> dict[str, set[str]]:
    """Serves a folder, opens every page in a window, and returns what is wrong with each.

    What a page loads late may be reported for a later one.
    """
    found: dict[str, set[str]] = {}
    handler = partial(_QuietHandler, directory=str(folder))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        browser.new_page(viewport={"width": width, "height": 900}) as page,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"

        def note(*faults: str) -> None:
            if faults:
                found.setdefault(page.url.removeprefix(address), set()).update(faults)

        page.on("console", lambda said: note(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.on(
            "response", lambda response: note(f"{response.url}: {response.status}") if response.status >= 400 else None
        )
        page.on("request", lambda each: None if each.url.startswith((address, "data:", "blob:")) else note(each.url))
        for file in sorted(folder.rglob("*.html")):
            if 'http-equiv="refresh"' not in file.read_text(encoding="utf-8"):
                page.goto(address + str(file.relative_to(folder)))
                note(*page.evaluate(FAULTS))
        server.shutdown()
    return found


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page_of_the_site_is_whole(browser: Any, site: Path, width: int) -> None:
    assert len(list(site.rglob("*.html"))) > 100
    assert faults(browser, site, width) == {}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_reports_and_views_of_notebooks_are_whole(browser: Any, reports: Path, width: int) -> None:
    assert faults(browser, reports, width) == {}


def test_a_report_draws_its_bars(browser: Any, reports: Path) -> None:
    with browser.new_page(viewport={"width": WIDE, "height": 900}) as page:
        page.goto((reports / "built.html").as_uri())
        pixels = np.asarray(Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")).astype(int)
    assert ((pixels != 255).any(axis=(1, 2))).sum() > 500  # lines of text and pictures, not an empty page
    assert (pixels == [0x4A, 0x7A, 0xB5]).all(axis=2).sum() > 1000  # the bars of histograms


def test_faults_are_noticed(browser: Any, tmp_path: Path) -> None:
    """The checks above can fail: a page for each fault."""
    bodies = {
        "wide": '<p style="width: 2000px">wide</p>',
        "cut": f'<div style="overflow: hidden"><pre>{"x " * 500}</pre></div>',
        "clipped": f'<pre style="overflow: hidden">{"x " * 500}</pre>',
        "accepted": f'<pre style="overflow: auto">{"x " * 500}</pre>',
        "folded": f'<details style="overflow: hidden"><pre>{"x " * 500}</pre></details>',
        "script": "<script>missing()</script>",
        "missing": '<img src="absent.png">',
        "elsewhere": '<link rel="stylesheet" href="https://fonts.example/font.css">',
    }
    (tmp_path / "favicon.ico").touch()
    for name, body in bodies.items():
        (tmp_path / f"{name}.html").write_text(f"<!doctype html>{body}", encoding="utf-8")
    noticed = faults(browser, tmp_path, NARROW)
    assert {name.removesuffix(".html") for name in noticed} == {*bodies} - {"accepted"}
