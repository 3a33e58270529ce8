"""Valid addresses, all of this machine; tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from parquetry.common.base.errors import PipelineError
from parquetry.common.transport.served.address import Endpoint, ServerAddress, parse_endpoint
from parquetry.common.transport.served.tokens import read_token, same_token


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("unix:/run/a.sock", Endpoint(kind="unix", path="/run/a.sock")),
        ("unix:///run/a.sock", Endpoint(kind="unix", path="/run/a.sock")),
        ("tcp://127.0.0.1:80", Endpoint(kind="tcp", host="127.0.0.1", port=80)),
        ("tcp://[::1]:80", Endpoint(kind="tcp", host="::1", port=80)),
        ("tcp://localhost:80", Endpoint(kind="tcp", host="localhost", port=80)),
    ],
)
def test_a_url_names_an_endpoint_and_back(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "url",
    ["", "http://x:1", "tcp://127.0.0.1", "tcp://:1", "tcp://a:b", "tcp://a:1/x", "tcp://u@a:1", "tls://127.0.0.1:1"],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(PipelineError, match=r"expected unix:PATH or tcp://127.0.0.1:PORT\.$"):
        parse_endpoint(url)


@pytest.mark.parametrize("url", ["unix:", "unix:/" + "x" * 200])
def test_a_socket_needs_a_path_that_fits(url: str) -> None:
    with pytest.raises(PipelineError, match="expected the path of a socket, of at most 107 bytes"):
        parse_endpoint(url)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "[::]", "data.example"])
def test_another_machine_is_reached_through_a_tunnel(host: str) -> None:
    with pytest.raises(PipelineError, match=r"serves its own machine only.* ssh -N -L 9100:127\.0\.0\.1:9100 SERVER\."):
        ServerAddress(url=f"tcp://{host}:9100")


def test_an_address_survives_json_and_holds_no_token() -> None:
    address = ServerAddress(url="tcp://127.0.0.1:9100", token_file="/run/token", shared=True)
    assert ServerAddress.of(address.to_json()) == address
    assert ServerAddress.of(address) is address
    assert "token_file" in address.to_json()


def test_values_that_are_not_addresses_are_refused() -> None:
    with pytest.raises(PipelineError, match="or a ServerAddress, got 7"):
        ServerAddress.of(7)
    with pytest.raises(PipelineError, match="expected a port, got none"):
        ServerAddress.of("tcp://127.0.0.1:0")


def test_a_token_is_a_line_that_cannot_be_guessed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery-staple\nrest\n")
    assert read_token(str(file)) == "correct-horse-battery-staple"
    file.write_text("short")
    with pytest.raises(PipelineError, match="expected at least 16 characters in its first line, got 5"):
        read_token(str(file))
    with pytest.raises(PipelineError, match=r"expected a text file, got .*No such file"):
        read_token(str(tmp_path / "none"))


def test_tokens_are_compared_whole() -> None:
    assert same_token(None, None)
    assert same_token("abc", "abc")
    assert not same_token("abc", "abcd")
    assert not same_token("abc", None)
    assert not same_token("abc", 5)
