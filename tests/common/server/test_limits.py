"""A server limits each client's time, memory and connections, and tells the client which limit it hit."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import Built, built_once
from cases import every_case

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError, SidecarError
from parquetry.common.base.platform import sockets
from parquetry.common.schema.plain import hints_of
from parquetry.common.server import ClientLimits, ServerAddress, client_pipelines, limits, listener, serve
from parquetry.common.server.limits import check_pattern, within
from parquetry.common.server.sending import own_steps, send_stream
from parquetry.common.server.stream_budget import StreamBudget
from parquetry.common.stages.base import kinds
from parquetry.common.transport.served import tokens
from parquetry.common.transport.served.client import Connection, ask_once, open_stream
from parquetry.common.transport.served.served_plan import sendable_verbs
from parquetry.common.transport.served.wire import ERROR_KEY, SocketReader, StreamRequest

from .served import elements, socket_url

built = built_once([[20, 30]], names=("id", "image"))


NEED_NO_LIMIT = {
    *(
        "even",
        "pad_to",
        "policy",
        "drop_remainder",
        "reshuffle_each_iteration",
        "drawn",
        "elements",
        "lengths",
    ),  # choices
    *(
        "index",
        "seed",
        "value",
        "pad_value",
        "mean",
        "std",
        "low",
        "high",
        "hash_buckets",
    ),  # any number takes the same time
    *("field", "dtype", "dims"),  # one of those that exist
    *("boundaries", "shape", "declared"),  # no longer than the request; `check_element` limits what they lead to
}
"""The parameters of stages that cost a server nothing, whatever a client sends."""


def test_every_parameter_that_a_client_may_send_has_a_limit_or_needs_none() -> None:
    limited = {*limits._SHARDS, *limits._BATCHES, *limits._ROWS, *limits._NAMES, *limits._PATTERNS, "recut"}
    sent = {name for verb in sendable_verbs() for name in hints_of(kinds()[verb])}
    assert sent - limited == NEED_NO_LIMIT


@every_case(
    ("stages", "why"),
    [
        ([{"verb": "shard", "num_shards": 2**40, "index": 0}], "shard: expected num_shards of at most 65,536"),
        ([{"verb": "shard", "num_shards": 2, "index": 0, "canonical_shards": 2**40}], "canonical_shards of at most"),
        ([{"verb": "shard", "num_shards": 2, "index": 0, "recut": {"cuts": [[8, 2**40]]}}], "recut of at most"),
        ([{"verb": "batch", "batch_size": 2**30}], "batch: expected batch_size of at most 1,048,576"),
        ([{"verb": "bucket", "field": "id", "boundaries": [3], "batch_sizes": [1, 2**30]}], "batch_sizes of at most"),
        ([{"verb": "take", "count": 10**30}], "take: expected count of at most"),
        ([{"verb": "shuffle", "buffer_size": 2**60, "seed": 1}], "shuffle: expected buffer_size of at most"),
        ([{"verb": "batch", "batch_size": float("nan")}], "batch: expected batch_size of at most"),
        ([{"verb": "take", "count": 9}] * 33, "expected a list of at most 32 stages"),
        ("take", "expected a list of at most 32 stages"),
        ([{"verb": "select", "patterns": ["(a+)+$"]}], "select: expected a field's name or a simple pattern"),
        (
            [{"verb": "rename", "names": [["id", "a" * 80_000]]}, {"verb": "select", "patterns": [".*.*[bc]"]}],
            "rename: expected field names of at most 255 characters",
        ),
        ([{"verb": "as_tuple", "form": {"a" * 80_000: "id"}}], "as_tuple: expected field names of at most 255"),
        ([{"verb": "batch", "batch_size": 1 << 20}], "expected batches of at most .* for field 'image'"),
    ],
)
def test_a_client_that_asks_for_too_much_gets_an_error_at_once(built: Built, stages: Any, why: str) -> None:
    with serve(built.pipeline("id", "image"), limits=ClientLimits(memory_bytes=1 << 24)) as server:
        address = ServerAddress.of(server)
        with pytest.raises(PipelineError, match=why):
            ask_once(address, {"do": "describe", "stages": stages})
        assert len(Pipeline(address=address)) == 50  # and it continues


@every_case(
    "request_",
    [
        {"do": "describe", "seed": 2**70},
        {"do": "describe", "seed": "seven"},
        {"do": "stream", "workers": 2**40},
        {"do": "origin_after", "origin": [0, 0], "num_shards": 2**40, "rows": 1},
    ],
)
def test_requests_are_held_to_the_same_limits(built: Built, request_: dict[str, Any]) -> None:
    with serve(built.pipeline("id")) as server, pytest.raises(PipelineError, match=r"of at most|64-bit integer"):
        ask_once(ServerAddress.of(server), request_)


@every_case("pattern", ["id", "i.*", "image_[a-z]+", r"\w+_\d*", "a|b|c.*", "a.b-c/d e", "", "|".join(["a.b"] * 999)])
def test_names_and_simple_patterns_are_accepted_from_clients(pattern: str) -> None:
    check_pattern("select", pattern)


@every_case(
    "pattern",
    [
        "(a+)+",
        "(a|a)*b",
        "a{9}{9}{9}",
        r"(.)\1",
        "(?=a)a",
        ".*.*.*b",
        "[a",
        "a**",
        "(?i)id",
        "|".join("é*+") * 9,
        "|".join([".*.*[bc]"] * 100),
        ".*.*" + "a" * 500,
    ],
)
def test_patterns_that_could_take_long_are_refused(pattern: str) -> None:
    with pytest.raises(PipelineError, match="Name the fields, or add the stage to the served pipeline"):
        check_pattern("select", pattern)


def test_a_simple_pattern_selects_what_it_selects_over_files(built: Built) -> None:
    pipeline = built.pipeline()
    with serve(pipeline) as server:
        served = Pipeline(address=server.address).select("i.*")
        assert elements(served) == elements(pipeline.select("i.*"))


def test_planning_that_takes_too_long_is_stopped() -> None:
    stopped = []

    def plan() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped.append(True)

    with pytest.raises(PipelineError, match=r"planned within 0\.02 s"):
        within(0.02, plan)
    while not stopped:
        time.sleep(0.001)
    with pytest.raises(ZeroDivisionError):
        within(9, lambda: 1 // 0)
    assert within(9, lambda: 3) == 3


def test_a_server_at_its_connection_limit_takes_another_when_one_is_closed(built: Built) -> None:
    with serve(built.pipeline("id"), limits=ClientLimits(max_connections=2)) as server:
        address = ServerAddress.of(server)
        first, second = Connection(address), Connection(address)
        for connection in (first, second):
            assert connection.ask({"do": "length"}) == {"length": 50}
        with pytest.raises(PipelineError, match=r"at most 2 connections at once.* limit max_connections"):
            ask_once(address, {"do": "length"})
        first.close()
        while server.clients > 1:
            time.sleep(0.001)
        assert ask_once(address, {"do": "length"}) == {"length": 50}
        second.close()


@every_case("said", [b"", b"PQA1", b"PQA1\x09\x00\x00\x00{"])
def test_a_client_that_does_not_say_what_it_wants_is_sent_away(built: Built, said: bytes) -> None:
    with (
        serve(built.pipeline("id"), limits=ClientLimits(hello_s=0.02)) as server,
        socket.create_connection((server.endpoint.host, server.endpoint.port)) as stranger,
    ):
        stranger.sendall(said)
        assert stranger.recv(1) == b""


def test_a_client_that_neither_asks_nor_reads_is_sent_away(built: Built) -> None:
    with serve(built.pipeline("id").repeat().batch(4), limits=ClientLimits(idle_s=0.05)) as server:
        address = ServerAddress.of(server)
        connection = Connection(address)
        assert connection.ask({"do": "length"}) == {"length": None}
        assert connection.socket.recv(1) == b""
        connection.close()
        shared = open_stream(ServerAddress(url=address.url, shared=True), (), StreamRequest(shared=True))
        with pa.ipc.open_stream(pa.PythonFile(SocketReader(shared.socket), mode="r")) as reader:
            _, told = reader.read_next_batch_with_custom_metadata()  # nobody requested one
        assert b"ask for a batch within 0.05 s" in told[ERROR_KEY]
        shared.close()


def test_a_client_that_does_not_read_is_dropped(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = built.pipeline("image").repeat().batch(50)
    left, right = socket.socketpair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        left.settimeout(0.02)
        send_stream(
            left,
            pipeline.element,
            own_steps(pipeline, StreamRequest(), StreamBudget(ClientLimits())),
            "rows",
        )
    assert "a client that read nothing for 0.02 s was dropped" in caplog.text


def test_processes_of_other_users_are_turned_away(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket_url() as url, serve(built.pipeline("id"), url) as server:
        assert len(Pipeline(address=server.address)) == 50
        monkeypatch.setattr(listener.os, "geteuid", lambda: 12345)
        monkeypatch.setattr(sockets, "_PEER", type("Peer", (), {"size": 12, "unpack": lambda data: (1, 54321, 1)}))
        with pytest.raises(SidecarError, match="server at"):
            ask_once(ServerAddress.of(server), {"do": "length"})


def test_a_tcp_server_without_a_token_file_lets_in_this_user_alone(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(built.pipeline("id")) as server:
        file = Path(tokens._token_path("127.0.0.1", server.endpoint.port))
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert len(Pipeline(address=server.address.replace("127.0.0.1", "localhost"))) == 50
        monkeypatch.setattr(tokens, "_is_private", lambda path, kind: False)  # as for another user
        with pytest.raises(PipelineError, match="expected its token, got another or none") as caught:
            _ = Pipeline(address=server.address).element
        assert "On the server" not in str(caught.value)  # strangers learn nothing about its files
    assert not file.exists()


def test_tokens_of_killed_servers_go_and_those_of_running_ones_stay(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tokens, "_token_directory", lambda: str(tmp_path))
    tmp_path.chmod(0o700)
    left, new = tmp_path / "tcp-127.0.0.1-1.token", tmp_path / "tcp-127.0.0.1-2.token"
    for file in (left, new):
        file.write_text("x" * 20)
    with serve(built.pipeline("id")) as first:
        running = Path(tokens._token_path("127.0.0.1", first.endpoint.port))
        for file in (left, running):
            os.utime(file, (1, 1))
        with serve(built.pipeline("id")):
            assert {path.name for path in tmp_path.iterdir()} >= {new.name, running.name}
            assert not left.exists()
    assert list(tmp_path.iterdir()) == [new]


def test_served_names_may_hold_any_characters() -> None:
    request = {"stages": [{"verb": "select", "patterns": ["price ($)"]}]}
    ClientLimits().check_request(request, names=["price ($)"])
    with pytest.raises(PipelineError, match="a field's name or a simple pattern"):
        ClientLimits().check_request(request, names=["price"])


def test_a_token_directory_that_others_can_write_is_not_used(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tokens, "_token_directory", lambda: str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir(mode=0o777)
    os.chmod(tmp_path / "shared", stat.S_IRWXU | stat.S_IRWXO)
    with pytest.raises(PipelineError, match=r"not a directory that only this user can access.*Give a token file"):
        serve(built.pipeline("id"))


def test_the_memory_of_a_stream_is_the_lower_of_both_limits(built: Built) -> None:
    limits = ClientLimits(memory_bytes=1 << 20)
    for own, wanted in ((None, 1 << 20), (1 << 30, 1 << 20), (1 << 10, 1 << 10)):
        with serve(built.pipeline("id", memory_limit=own), limits=limits) as server:
            assert server.pipelines.served.options.memory_limit == wanted


@every_case(
    ("text", "why"),
    [
        ("idle=3", "expected NAME=NUMBER, where NAME is one of"),
        ("idle_s=soon", "expected a number after idle_s="),
        ("max_shards=0", "limit max_shards: expected a number above 0"),
        ("idle_s=nan", "limit idle_s: expected a number above 0"),
    ],
)
def test_a_wrong_limit_is_reported(text: str, why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        ClientLimits.parse([text])
    assert ClientLimits.parse(["idle_s=600", "max_shards=8"]) == ClientLimits(idle_s=600, max_shards=8)


def test_an_error_that_quotes_a_long_request_is_short(built: Built) -> None:
    stage = {"verb": "take", "count": [[1] * 50_000]}
    with serve(built.pipeline("id")) as server:
        with pytest.raises(
            PipelineError, match=r"(?s)take: .*\[\.\.\. cut \.\.\.\].*On the server:.*PipelineError"
        ) as caught:
            ask_once(ServerAddress.of(server), {"do": "describe", "stages": [stage]})
        assert len(str(caught.value)) < 40_000


def test_the_pipelines_that_clients_asked_for_most_recently_are_kept(built: Built) -> None:
    kept = client_pipelines.ClientPipelines(built.pipeline("id"), ClientLimits())
    first = kept.of(taking(0))[1]
    for number in range(1, 3 * client_pipelines._MOST_KEPT):
        kept.of(taking(number))
        assert kept.of(taking(0))[1] is first
    assert len(kept._recent) == client_pipelines._MOST_KEPT


def taking(count: int) -> dict[str, Any]:
    """A request for the first elements."""
    return {"stages": [{"verb": "take", "count": count}]}
