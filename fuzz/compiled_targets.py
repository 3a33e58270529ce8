"""Fuzzes the parsers in C++, guided by coverage: those of the compiled core, and those of the op's client.

Each harness is compiled with AddressSanitizer and UndefinedBehaviorSanitizer, and linked with libFuzzer: clang's, or
the one in atheris, which g++ can use as well. Inputs that reach new code are kept in ``build/fuzz/TARGET/corpus``.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_HARNESSES = Path(__file__).resolve().parent / "compiled"
_SOURCES = {
    "op_client": (_ROOT / "tests/tf_plugin/fuzz_messages.cc", _ROOT / "tf_plugin/kernels/messages.cc"),
    **{name: (_HARNESSES / f"{name}.cc",) for name in ("core_pages", "core_cells", "core_footers")},
}
"""The sources of each harness. The harnesses of the core include the source that they test."""
_FLAGS = ("-std=c++17", "-O1", "-g", "-DPARQUETRY_LIBFUZZER", "-fno-sanitize-recover=all")
_CLANG = "-fsanitize=fuzzer,address,undefined"
_GCC = ("-fsanitize=address,undefined", "-fsanitize-coverage=trace-pc,trace-cmp")
_PROBE = "#include <cstddef>\n#include <cstdint>\n" + (
    'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n'
)
NAMES = tuple(_SOURCES)


def reason_to_skip() -> str:
    """Returns why this machine cannot build the harnesses, or an empty string."""
    if _has_clang() or (shutil.which("g++") is not None and _fuzzer_of_atheris() is not None):
        return ""
    return "neither clang++ with the runtime of libFuzzer (on Debian: libclang-rt-*-dev), nor g++ and atheris"


def fuzz(name: str, corpus: Path, found: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Builds a harness, runs it from a corpus, and returns the run with all that it printed.

    Args:
        name: one of `NAMES`.
        corpus: the seed inputs.
        found: the folder for failing inputs, and in ``corpus`` below it, for those that reach new code.
        options: those of libFuzzer.

    Raises:
        subprocess.CalledProcessError: the harness cannot be built.
    """
    (found / "corpus").mkdir(parents=True, exist_ok=True)
    target = found / name
    if _has_clang():
        _run("clang++", *_FLAGS, _CLANG, *_SOURCES[name], "-o", target)
    else:
        _build_with_gcc(name, target)
    command: list[str | Path] = [target, *options, found / "corpus", corpus]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def check(name: str) -> None:
    """Compiles a harness, without making a program of it.

    Raises:
        subprocess.CalledProcessError: the harness does not fit the source that it tests.
    """
    for source in _SOURCES[name]:
        _run("g++", *_FLAGS, "-fsyntax-only", source)


def _build_with_gcc(name: str, target: Path) -> None:
    fuzzer = _fuzzer_of_atheris()
    assert fuzzer is not None, reason_to_skip()
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{number}.o" for number in range(len(_SOURCES[name]))]
        for source, made in zip(_SOURCES[name], objects, strict=True):
            _run("g++", *_FLAGS, *_GCC, "-c", source, "-o", made)
        coverage = _HARNESSES / "gcc_coverage.cc"
        # The sanitizers' runtime is clang's, in the same library as libFuzzer. What g++ makes works with it.
        _run("g++", "-std=c++17", "-O2", coverage, *objects, fuzzer, f"-Wl,-rpath,{fuzzer.parent}", "-o", target)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


@functools.cache
def _has_clang() -> bool:
    if shutil.which("clang++") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["clang++", _CLANG, "-x", "c++", "-", "-o", f"{folder}/probe"]
        return subprocess.run(command, input=_PROBE, capture_output=True, text=True, check=False).returncode == 0


def _fuzzer_of_atheris() -> Path | None:
    """Returns the library in atheris that consists of libFuzzer and the runtimes of the sanitizers."""
    found = importlib.util.find_spec("atheris")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent.parent / "asan_with_fuzzer.so"
    return library if library.is_file() else None
