"""The small examples run as they stand, and the README shows their very code."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SAYS = {
    "hello_numpy.py": ("(64, 16, 16, 3) [1 1 1 1 1]", "gives: 8 batches of 64 rows"),
    "hello_tensorflow.py": ("Epoch 3/3", "16/16"),
    "hello_torch.py": ("epoch 2: loss 0.0",),
    "served.py": ("TensorFlow: epoch 2: 10 batches", "PyTorch: epoch 2: 10 batches", "exit statuses: [0, 0]"),
    "windows.py": ("['b', 'b', 'b'] [3500, 3600, 3700]", "0.5 (2, 3)"),
    "filters_and_shards.py": ("[20, 20, 20] rows", "rank 3: 3 steps"),
}
NEEDS = {
    "hello_tensorflow.py": ("tensorflow",),
    "hello_torch.py": ("torch",),
    "served.py": ("tensorflow", "torch"),
}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    missing = [framework for framework in NEEDS.get(name, ()) if find_spec(framework) is None]
    if missing:
        pytest.skip(f"needs {missing}")
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env={**os.environ, "TMPDIR": str(tmp_path), "PARQUETRY_CACHE_DIR": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    for text in SAYS[name]:
        assert text in result.stdout


@pytest.mark.parametrize("name", ["hello_numpy.py", "hello_tensorflow.py", "hello_torch.py"])
def test_the_readme_shows_the_code_of_the_hello_examples(name: str) -> None:
    code = (ROOT / "examples" / name).read_text(encoding="utf-8").partition("\n\n")[2]
    assert f"```python\n{code}```" in (ROOT / "README.md").read_text(encoding="utf-8")
