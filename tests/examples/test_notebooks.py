"""The notebooks run from top to bottom, and show the results that they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
SHOWS = {
    "look_at_a_dataset.ipynb": ("image/png", "radius", "<img"),
    "train_and_resume.ipynb": ("600 1400", "1,400 rows in 28 elements"),
}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit"
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    for text in SHOWS[path.name]:
        assert text in shown
