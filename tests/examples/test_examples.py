"""The examples run as they stand, and the README shows the code and the output of the first."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import PATIENCE_S, seed_frameworks

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HELLO = """\
18 batches
torch.Size([256, 2]) tensor([0, 1, 1, 1, 1, 1, 0, 1])
torch.Size([256, 2]) tensor([1, 0, 0, 0, 0, 0, 0, 1])
"""
SAYS = {
    "hello.py": (HELLO,),
    "policy.py": ("PyTorch: loss 0.0", "Keras: loss 0.0"),
    "served.py": ("TensorFlow: epoch 2: 10 batches", "PyTorch: epoch 2: 10 batches", "exit statuses: [0, 0]"),
    "trainers/accelerate_loop.py": ("epoch 2: 20 batches, loss 0.0",),
    "trainers/checkpointed_loop.py": ("12 batches were left, loss 0.",),
    "trainers/data_service.py": ("960 tiles, 960 of them distinct, loss 0.",),
    "trainers/hugging_face_trainer.py": ("54 steps, loss 0.0",),
    "trainers/jax_loop.py": ("epoch 2: 20 batches, loss 0.0",),
    "trainers/launched_loop.py": (
        "rank 1 of 2 stops after step 6",
        "rank 2 of 3 epoch 0 ends after step 13, each tile was seen [1] times",
    ),
    "trainers/lightning_module.py": ("60 steps, loss 0.0",),
    "trainers/multi_worker.py": (
        "worker 1: steps 1 to 6, tiles seen [0, 1] times",
        "worker 0: steps 7 to 16, tiles seen [1] times",
        "1 workers ended with [0]",
    ),
    "trainers/pretraining_loop.py": ("step 6: loss", "step 62: loss 0."),
    "trainers/ray_data.py": ("500 rows in, 500 out",),
    "trainers/ray_train.py": (
        "workers 2, epoch 0, step 6: each tile was seen [0, 1] times",
        "workers 1, epoch 1, step 58: each tile was seen [2] times",
    ),
    "trainers/s3_to_torch.py": ("epoch 2: loss 0.0",),
    "trainers/spark_to_torch.py": ("epoch 4: loss 0.",),
    "trainers/tensorflow_loop.py": ("epoch 1: 13 batches", "epoch 2: 20 batches, loss 0.0"),
}
NEEDS = {
    "hello.py": ("torch",),
    "policy.py": ("av", "tensorflow", "torch"),
    "served.py": ("tensorflow", "torch"),
    "trainers/accelerate_loop.py": ("accelerate",),
    "trainers/checkpointed_loop.py": ("torch",),
    "trainers/data_service.py": ("tensorflow",),
    "trainers/hugging_face_trainer.py": ("transformers",),
    "trainers/jax_loop.py": ("jax",),
    "trainers/launched_loop.py": ("torch",),
    "trainers/lightning_module.py": ("lightning",),
    "trainers/multi_worker.py": ("tensorflow",),
    "trainers/pretraining_loop.py": ("torch",),
    "trainers/ray_data.py": ("ray",),
    "trainers/ray_train.py": ("ray", "torch"),
    "trainers/s3_to_torch.py": ("moto", "torch"),
    "trainers/spark_to_torch.py": ("pyspark", "torch"),
    "trainers/tensorflow_loop.py": ("tensorflow",),
}

ALONE = {
    "served.py",  # starts processes, which import the script
    "trainers/data_service.py",  # starts processes, which run the script
    "trainers/launched_loop.py",  # starts processes, which run the script
    "trainers/multi_worker.py",  # starts processes, which run the script
    "trainers/spark_to_torch.py",  # stops the only Spark session of the process
    "trainers/ray_data.py",  # starts a cluster
    "trainers/ray_train.py",  # starts a cluster
    "trainers/pretraining_loop.py",  # starts processes, which import the script
    "trainers/checkpointed_loop.py",  # its loader stays in the memory of torch.distributed.checkpoint
}

# Each takes long, and other tests run what it uses.
WHOLE_TRAININGS = {
    "trainers/data_service.py",
    "trainers/launched_loop.py",
    "trainers/multi_worker.py",
    "trainers/pretraining_loop.py",
    "trainers/ray_train.py",
}


@pytest.mark.filterwarnings("default")  # the libraries that they use warn of their own code
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in WHOLE_TRAININGS else ()) for name in SAYS]
)
def test_an_example_runs_and_prints_what_it_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [framework for framework in NEEDS.get(name, ()) if find_spec(framework) is None]
    if missing:
        pytest.skip(f"needs {missing}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    short = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)  # it names sockets
    monkeypatch.setenv("RAY_TMPDIR", short.name)
    monkeypatch.syspath_prepend((EXAMPLES / name).parent)
    with short:
        said = run_alone(name) if name in ALONE else run_here(name, capsys)
    for text in SAYS[name]:
        assert text in said


def run_alone(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def run_here(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Importing a framework again takes seconds."""
    seed_frameworks()
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_the_readme_begins_with_the_code_of_hello_and_what_it_prints() -> None:
    code = (EXAMPLES / "hello.py").read_text(encoding="utf-8").partition("\n\n")[2]
    shown = f"```python\n{code}```\n\nIt prints:\n\n```\n{HELLO}```"
    assert shown in (EXAMPLES.parent / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
