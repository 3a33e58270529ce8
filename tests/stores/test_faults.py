"""After any fault between a store and a reader, the reader gets the exact rows or one clear error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from builders import Built, build, make_row
from fault_proxy import FAULTS, Proxy, proxy_of
from ids import ids
from s3_server import serving
from store_servers import gcs_emulator, gs_url, moto_s3, s3_url

from parquetry.common import Pipeline, write_dataset
from parquetry.common.base.errors import DatasetError
from parquetry.common.parquet import group_footers
from parquetry.common.storage import hedged_reads, retries

NAMES = ("id", "tags", "image")
ROWS = 100
Urls = str | list[str]

HARMLESS = {("gs", "long"), ("gs", "misnamed"), ("s3", "misnamed"), ("http", "whole")}
"""Faults that change no byte of what the client keeps."""
SAID = {
    "500": r"cannot be read, the store failed \d times, most recently: .*500",
    "503": r"(?i)cannot be read, the store failed \d times, most recently: .*(Slow.?Down|SERVICE_UNAVAILABLE|503)",
    "reset": r"cannot be read, the store failed \d times",
    "cut": r"cannot be read, the store failed \d times",
    "silent": r"cannot be read, the store failed \d times, most recently: the store timed out: expected a response",
}
"""What the error says if a fault stays. Whatever else is wrong with an answer may look like a damaged file."""
OTHERWISE = r"cannot be read, the store failed \d times, most recently: |The file is damaged or was replaced"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("rows") / "rows", [[20, 20], [20], [20, 20]], names=NAMES)


def http_urls(address: str) -> list[str]:
    return [f"http://{address}/rows/part-00{number}.parquet" for number in range(3)]


@pytest.fixture(scope="module")
def proxies(built: Built) -> Iterator[Callable[[str], tuple[Proxy, Urls]]]:
    """Returns a function that returns the proxy before a kind of store, and the URLs of the dataset behind it."""
    with ExitStack() as stack:
        known: dict[str, tuple[Proxy, Urls]] = {}

        def start(store: str) -> tuple[Proxy, Urls]:
            if store == "http":
                proxy = stack.enter_context(proxy_of(stack.enter_context(serving(Path(built.url).parent)).address))
                return proxy, http_urls(proxy.address)
            upstream = stack.enter_context(moto_s3() if store == "s3" else gcs_emulator())
            url = s3_url(upstream) if store == "s3" else gs_url(upstream)
            rows = (make_row(number, NAMES) for number in range(ROWS))
            write_dataset(url, built.schema, rows, row_group_rows=20, files=3)
            proxy = stack.enter_context(proxy_of(upstream))
            return proxy, s3_url(proxy.address) if store == "s3" else gs_url(proxy.address, retry_limit_seconds=0.1)

        def started(store: str) -> tuple[Proxy, Urls]:
            if store not in known:
                known[store] = start(store)
            return known[store]

        yield started


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(retries, "ATTEMPTS", 3)
    monkeypatch.setattr(hedged_reads, "SILENT_S", 1.0 if "silent" in request.node.name else 30.0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("store", ["s3", "gs", "http"])
def test_a_fault_is_overcome_or_named(
    store: str, fault: str, proxies: Callable[[str], tuple[Proxy, Urls]], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, urls = proxies(store)
    rows = Pipeline(urls, executor="threads", workers=1)
    proxy.spoil()
    expected = ids(rows)
    assert sorted(expected) == list(range(ROWS))
    proxy.spoil(fault, fault)
    assert ids(rows) == expected
    assert proxy.spoilt() == 2
    monkeypatch.setattr(retries, "ATTEMPTS", 2)
    proxy.spoil(always=fault)
    if (store, fault) in HARMLESS:
        assert ids(rows) == expected
    else:
        with pytest.raises(DatasetError, match=r"part-.*\.parquet, row group \d: ") as caught:
            ids(rows)
        caught.match(SAID.get(fault, OTHERWISE))
        caught.match("Check the network" if fault in SAID else OTHERWISE)
    proxy.spoil()


@pytest.mark.parametrize("fault", ["503", "other bytes"])
@pytest.mark.parametrize("store", ["s3", "gs", "http"])
def test_a_fault_while_footers_are_read_is_overcome(
    store: str, fault: str, proxies: Callable[[str], tuple[Proxy, Urls]]
) -> None:
    group_footers._stored.clear()
    proxy, urls = proxies(store)
    proxy.spoil(fault)
    assert len(Pipeline(urls, executor="threads")) == ROWS
    assert proxy.spoilt() == 1
    proxy.spoil()
