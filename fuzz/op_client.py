"""Fuzzes what the op's client reads of a sidecar's packets, guided by coverage: clang's libFuzzer and its sanitizers.

The harness is ``tests/tf_plugin/fuzz_messages.cc``. Inputs that reach new code are kept in ``build/fuzz/op_client``.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = (_ROOT / "tests/tf_plugin/fuzz_messages.cc", _ROOT / "tf_plugin/kernels/messages.cc")
_FLAGS = ("-std=c++17", "-O1", "-g", "-DPARQUETRY_LIBFUZZER", "-fno-sanitize-recover=all")
_SANITIZERS = "-fsanitize=fuzzer,address,undefined"
_PROBE = "#include <cstddef>\n#include <cstdint>\n" + (
    'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n'
)
NAME = "op_client"


@functools.cache
def reason_to_skip() -> str:
    """Returns why this machine cannot build the harness, or an empty string."""
    if shutil.which("clang++") is None:
        return "no clang++"
    with tempfile.TemporaryDirectory() as folder:
        command = ["clang++", _SANITIZERS, "-x", "c++", "-", "-o", f"{folder}/probe"]
        found = subprocess.run(command, input=_PROBE, capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else "clang++ without the runtime of libFuzzer (on Debian: libclang-rt-*-dev)"


def fuzz(corpus: Path, found: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Builds the harness, runs it from a corpus, and returns the run with all that it printed.

    Args:
        corpus: the seed inputs.
        found: the folder for failing inputs, and in ``corpus`` below it, for those that reach new code.
        options: those of libFuzzer.

    Raises:
        subprocess.CalledProcessError: the harness cannot be built.
    """
    (found / "corpus").mkdir(parents=True, exist_ok=True)
    target = found / "fuzz_messages"
    subprocess.run(["clang++", *_FLAGS, _SANITIZERS, *map(str, _SOURCES), "-o", str(target)], check=True)
    command: list[str | Path] = [
        target,
        "-max_len=70000",
        f"-artifact_prefix={found}/",
        *options,
        found / "corpus",
        corpus,
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
