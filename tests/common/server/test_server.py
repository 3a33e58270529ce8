"""A served pipeline matches the pipeline: rows, order, epochs, states, shards, errors; and it leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from builders import ALL_FIELDS, Built, built_once
from processes import PATIENCE_S, settled

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import (
    EmptySelectionError,
    NullValueError,
    PipelineError,
    SidecarError,
    StateError,
    TransformError,
)
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.server import ArrowServer, ServerAddress, listener, serve
from parquetry.common.server.client_pipelines import with_added
from parquetry.common.server.endpoints import ReaderEndpoint
from parquetry.common.stages.shard import Shard
from parquetry.common.transport.served.client import Connection, open_stream
from parquetry.common.transport.served.wire import SocketReader, StreamRequest, send_json

from .served import elements, socket_url, tunnel_to

pytestmark = pytest.mark.versions

built = built_once([[20, 30], [25], [13]], names=ALL_FIELDS)


def until_nobody(server: ArrowServer) -> None:
    """Waits until the server notices that its clients have left."""
    server._listener.wait()
    assert server.clients == 0


@pytest.mark.parametrize("batch", [None, 8])
def test_a_served_pipeline_gives_the_same_elements_in_every_epoch(built: Built, url: str, batch: int | None) -> None:
    pipeline = built.pipeline().shuffle(30, seed=3)
    pipeline = pipeline if batch is None else pipeline.batch(batch)
    with serve(pipeline, url) as server:
        served = Pipeline(address=server.address)
        assert served.element == pipeline.element
        assert len(served) == len(pipeline)
        for _ in range(2):
            assert elements(served) == elements(pipeline)


def test_states_equal_the_pipelines_own(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(30, seed=3).batch(4)
    with serve(pipeline) as server:
        served = iter(Pipeline(address=server.address))
        own = iter(pipeline)
        for _ in range(5):
            assert served.state_dict() == own.state_dict()
            next(served), next(own)
        state, rest = own.state_dict(), elements(own)
        assert served.state_dict() == state
        served.close()
        for again in (iter(Pipeline(address=server.address)), iter(built.pipeline("id").shuffle(30, seed=3).batch(4))):
            again.load_state_dict(state)
            assert elements(again) == rest


def test_ranks_of_a_server_cut_anew_what_is_left(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(30, seed=3).batch(4)
    with serve(pipeline) as server:
        begun = iter(with_added(pipeline, [Shard(4, 0)]))
        next(begun)
        for rank in range(3):
            served = iter(Pipeline(address=server.address).shard(3, rank))
            own = iter(with_added(pipeline, [Shard(3, rank)]))
            for iterator in (served, own):
                iterator.load_state_dict(begun.state_dict())
            assert served.state_dict() == own.state_dict()
            assert own.state_dict()["cuts"] == [[16, 3]]
            assert elements(served) == elements(own)


def test_a_drawn_seed_travels_in_the_state(built: Built) -> None:
    first, second = (built.pipeline("id").shuffle(30).batch(4) for _ in range(2))
    own = iter(first)
    next(own)
    with serve(second) as server:
        served = iter(Pipeline(address=server.address))
        served.load_state_dict(own.state_dict())
        assert elements(served) == elements(own)


def test_a_state_of_another_pipeline_is_refused(built: Built) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        state = iter(built.pipeline("id").batch(4).take(3)).state_dict()
        with pytest.raises(StateError, match="saved for a different"):
            iter(Pipeline(address=server.address)).load_state_dict(state)


def test_each_client_names_its_shard(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(30, seed=3).batch(4)
    with serve(pipeline) as server:
        found = [elements(Pipeline(address=server.address).shard(3, rank)) for rank in range(3)]
    assert found == [elements(with_added(pipeline, [Shard(3, rank)])) for rank in range(3)]
    assert {row for part in found for batch in part for row in batch["id"]} == {row["id"] for row in built.plain}
    assert len({len(part) for part in found}) == 1


def test_plain_stages_are_added_where_they_stand(built: Built) -> None:
    pipeline = built.pipeline("id", "speed", "tags")
    with serve(pipeline) as server:
        served = Pipeline(address=server.address).select("id").shuffle(10, seed=1).batch(4).take(3).repeat(2)
        own = pipeline.select("id").shuffle(10, seed=1).batch(4).take(3).repeat(2)
        assert elements(served) == elements(own)
        assert served.accepts("take")
        assert not served.accepts("batch")
        assert "gives: 6 batches of 4 rows" in served.explain()


def test_code_is_never_taken_from_a_client(built: Built, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    added = [stage.to_json() for stage in built.pipeline().transform(Trap(str(trap))).stages]
    with serve(built.pipeline("id")) as server:
        with pytest.raises(
            PipelineError, match=r"transform: expected one of as_tuple, batch, .* Put it into the pipeline"
        ):
            Pipeline(address=server.address).transform(len)
        connection = Connection(ServerAddress.of(server))
        with pytest.raises(PipelineError, match="transform: expected one of as_tuple, batch"):
            connection.ask({"do": "describe", "stages": added})
        connection.close()
    assert not trap.exists()


class Trap:
    """Leaves a trace when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, row: Any) -> Any:
        return row

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_shared_epoch_gives_each_batch_to_one_client(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(30, seed=3).batch(4)
    with serve(pipeline) as server:
        trainers = [Pipeline(address=ServerAddress(url=server.address, shared=True)) for _ in range(3)]
        for _ in range(2):
            live, got = [iter(trainer) for trainer in trainers], []
            while live:
                for client in list(live):
                    batch = next(client, None)
                    live.remove(client) if batch is None else got.append(batch["id"].tolist())
            assert sorted(got) == sorted(batch["id"] for batch in elements(pipeline))
            until_nobody(server)
        late = Pipeline(address=ServerAddress(url=server.address, shared=True))
        assert elements(late) == []  # its first epoch is over


def test_a_shared_epoch_takes_no_shard_and_no_state(built: Built) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        part = Pipeline(address=ServerAddress(url=server.address, shared=True)).shard(2, 0)
        with pytest.raises(PipelineError, match="shared epoch: expected a client without a shard"):
            elements(part)


def fail_at_33(row: dict[str, Any]) -> dict[str, Any]:
    """A user function with a bug."""
    if row["id"] == 33:
        raise ValueError("no thirty-three")
    return row


@pytest.mark.parametrize("shared", [False, True])
def test_an_error_reaches_the_client_with_its_class_and_traceback(built: Built, shared: bool) -> None:
    pipeline = built.pipeline("id", executor="threads").transform(fail_at_33).batch(4)
    with serve(pipeline) as server:
        served = iter(Pipeline(address=ServerAddress(url=server.address, shared=shared)))
        with pytest.raises(TransformError, match=r"(?s)no thirty-three.*On the server:\nTraceback.*in fail_at_33"):
            elements(served)
        with pytest.raises(StopIteration):
            next(served)
        assert len(elements(Pipeline(address=server.address).take(2))) == 2  # the server continues


def test_plans_that_fail_are_reported_before_anything_is_served(built: Built) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        with pytest.raises(PipelineError, match="second"):
            _ = Pipeline(address=server.address).batch(2).element
        empty = built.pipeline("id").where([("id", ">", 10**6)])
    with serve(empty) as server, pytest.raises(EmptySelectionError, match="expected at least one item"):
        elements(Pipeline(address=server.address))


def test_nulls_are_errors_where_a_client_has_no_form_for_them(built: Built) -> None:
    with serve(built.pipeline("speed").batch(4)) as server:
        stream = open_stream(ServerAddress.of(server), (), StreamRequest(layout="cells"))
        with pa.ipc.open_stream(pa.PythonFile(SocketReader(stream.socket), mode="r")) as reader:
            assert NullValueError.__name__ in reader.read_next_batch().column(0)[0].as_py()
        stream.close()


def test_a_mix_can_be_served_but_not_mixed_from_servers(built: Built) -> None:
    pipeline = mix([built.pipeline("id"), built.pipeline("id").take(5)], seed=1).batch(4)
    with serve(pipeline) as server:
        assert elements(Pipeline(address=server.address)) == elements(pipeline)
        with pytest.raises(PipelineError, match="mix: expected pipelines over files"):
            mix([Pipeline(address=server.address)])
        with pytest.raises(PipelineError, match="expected a pipeline over files, got one from another server"):
            serve(Pipeline(address=server.address))


def test_functions_that_drop_rows_count_as_they_do_at_home(built: Built) -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any] | None:
        return row if row["id"] % 2 else None

    pipeline = built.pipeline("id", executor="threads").transform(odd, drops=True).batch(4)
    with serve(pipeline) as server:
        served, own = iter(Pipeline(address=server.address)), iter(pipeline)
        assert next(served)["id"].tolist() == next(own)["id"].tolist()
        assert served.state_dict() == own.state_dict()
        assert elements(served) == elements(own)
        with pytest.raises(TypeError, match="unknown, because a transform"):
            len(Pipeline(address=server.address))


def test_a_pipeline_with_an_address_is_a_value(built: Built) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        served = Pipeline(None, ["id"], address=server.address).take(2)
        assert pickle.loads(pickle.dumps(served)) == served
        assert Pipeline.from_json(json.loads(json.dumps(served.to_json()))) == served
        assert str(served).startswith(f"Pipeline(address='{server.address}')")
        with pytest.raises(PipelineError, match="because only the server opens the files"):
            _ = served.schema


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected a URL, a path, or a list"),
        ({"url_or_urls": "x", "address": "unix:/x"}, "expected either a URL or address= of a server, got both"),
    ],
)
def test_a_pipeline_is_over_files_or_at_an_address(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Pipeline(**arguments)


def test_options_of_files_do_not_go_with_an_address() -> None:
    with pytest.raises(PipelineError, match="expected no filesystem or storage_options with address="):
        Pipeline(address="unix:/x", storage_options={"a": 1})


def test_an_address_without_a_server_is_reported_with_the_command_to_run() -> None:
    with (
        socket_url() as url,
        pytest.raises(SidecarError, match=r"expected a server, got .*No such file.*parquetry serve"),
    ):
        elements(Pipeline(address=url))


def test_a_client_that_leaves_frees_what_the_server_had_for_it(built: Built) -> None:
    pipeline = built.pipeline("id", "image").repeat().batch(2)
    with serve(pipeline) as server:
        before = set(threading.enumerate())
        for _ in range(3):
            endless = iter(Pipeline(address=server.address))
            next(endless)
            endless.close()
        until_nobody(server)
        for thread in set(threading.enumerate()) - before:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name
        assert len(elements(Pipeline(address=server.address).take(3))) == 3


def test_a_dropped_iterator_leaves_the_server(built: Built) -> None:
    with serve(built.pipeline("id").repeat().batch(2)) as server:
        endless = iter(Pipeline(address=server.address))
        next(endless)
        del endless
        gc.collect()
        until_nobody(server)


def test_a_closing_server_ends_its_streams_with_an_error_and_leaves_nothing(built: Built) -> None:
    process = psutil.Process()
    with socket_url() as url:
        elements(Pipeline(built.url, ["id"]).batch(4))
        descriptors = process.num_fds()
        server = serve(built.pipeline("id").repeat().batch(2), url)
        endless = iter(Pipeline(address=server.address))
        next(endless)
        server.close()
        server.close()
        with pytest.raises(SidecarError, match="expected more data, got the end of the connection"):
            elements(endless)
        endless.close()
        assert not os.path.exists(url.removeprefix("unix:"))
        assert settled(process.num_fds, descriptors) <= descriptors  # engine threads close files when they end


def test_a_socket_that_is_in_use_is_not_taken_and_a_left_over_one_is(built: Built) -> None:
    pipeline = built.pipeline("id").batch(4)
    with socket_url() as url:
        with serve(pipeline, url), pytest.raises(PipelineError, match="expected an address that can be listened on"):
            serve(pipeline, url)
        left = socket.socket(socket.AF_UNIX)
        left.bind(url.removeprefix("unix:"))
        left.close()
        with serve(pipeline, url) as server:
            assert len(elements(Pipeline(address=server.address))) == len(pipeline)
            assert os.stat(url.removeprefix("unix:")).st_mode & 0o777 == 0o600


def test_a_socket_has_its_name_only_when_clients_can_connect(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = built.pipeline("id").batch(4)
    listen = socket.socket.listen
    with socket_url() as url:
        faster: list[ArrowServer] = []

        def listen_second(server: socket.socket, backlog: int) -> None:
            assert not os.path.exists(url.removeprefix("unix:"))
            monkeypatch.undo()
            faster.append(serve(pipeline, url))  # a second server, started at the same time, is faster
            listen(server, backlog)

        monkeypatch.setattr(socket.socket, "listen", listen_second)
        with pytest.raises(PipelineError, match="Address already in use"):
            serve(pipeline, url)
        with faster[0] as server:
            assert len(elements(Pipeline(address=server.address))) == len(pipeline)
        assert not os.listdir(os.path.dirname(url.removeprefix("unix:")))


def test_of_two_servers_that_find_a_left_over_socket_the_second_does_not_remove_the_first_ones(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = built.pipeline("id").batch(4)
    is_served = listener._is_served
    with socket_url() as url:
        left = socket.socket(socket.AF_UNIX)
        left.bind(url.removeprefix("unix:"))
        left.close()
        faster: list[ArrowServer] = []

        def slowly(path: str) -> bool:
            found = is_served(path)
            monkeypatch.undo()
            faster.append(serve(pipeline, url))  # a second server that found the same socket is faster
            return found

        monkeypatch.setattr(listener, "_is_served", slowly)
        with pytest.raises(PipelineError, match="Address already in use"):
            serve(pipeline, url)
        with faster[0] as server:
            assert len(elements(Pipeline(address=server.address))) == len(pipeline)
        assert not os.listdir(os.path.dirname(url.removeprefix("unix:")))


def test_the_socket_of_a_server_with_too_many_clients_is_not_removed(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused_at_first(path: str) -> bool:
        monkeypatch.undo()
        return False  # what the socket of a killed server says, before the busy one took its name

    monkeypatch.setattr(listener, "_is_served", refused_at_first)
    with socket_url() as url:
        path = url.removeprefix("unix:")
        busy, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        with busy, client:
            busy.bind(path)
            busy.listen(0)
            client.connect(path)
            with pytest.raises(PipelineError, match="Address already in use"):
                serve(built.pipeline("id").batch(4), url)
            assert os.listdir(os.path.dirname(path)) == ["s"]


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"PQA1\xff\xff\xff\x7f", b"PQA1\x02\x00\x00\x00[]", b'PQA1\x05\x00\x00\x00{"do']
)
def test_a_client_that_speaks_something_else_is_sent_away(built: Built, said: bytes) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        with socket.create_connection((server.endpoint.host, server.endpoint.port)) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: stranger.recv(4096), b""))
        assert b"SidecarError" in answer
        until_nobody(server)


def test_another_version_is_refused(built: Built) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        connection = Connection(ServerAddress.of(server))
        with pytest.raises(PipelineError, match="expected version 1 of the stream's requests, got 99"):
            connection.ask({"do": "describe", "version": 99})
        with pytest.raises(PipelineError, match="expected a request of the stream's protocol, got 'dance'"):
            connection.ask({"do": "dance"})
        with pytest.raises(StateError, match="expected whole numbers >= 0"):
            connection.ask({"do": "stream", "start": -1})
        connection.close()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("a-token-that-nobody-guesses\n")
    return str(file)


def test_a_client_behind_a_tunnel_needs_the_token(built: Built, token_file: str) -> None:
    pipeline = built.pipeline("id", "image").batch(8)
    with serve(pipeline, token_file=token_file) as server, tunnel_to(server) as url:
        assert elements(Pipeline(address=ServerAddress(url=url, token_file=token_file))) == elements(pipeline)
        with pytest.raises(PipelineError, match="expected its token, got another or none"):
            elements(Pipeline(address=url))


def test_a_reader_that_has_no_token_gets_its_epochs_through_this_process(built: Built, token_file: str) -> None:
    pipeline = built.pipeline("id").shuffle(30, seed=3).batch(8)
    with serve(pipeline, token_file=token_file) as server:
        endpoint = ReaderEndpoint(ServerAddress(url=server.address, token_file=token_file), ())
        for epoch in range(2):
            with socket.socket(socket.AF_UNIX) as reader:
                reader.connect(endpoint.endpoint.path)
                with pa.ipc.open_stream(pa.PythonFile(SocketReader(reader), mode="r")) as stream:
                    assert sum(batch.num_rows for batch in stream) == len(pipeline)
            assert endpoint.latest == Cursor(iteration=epoch)
        endpoint.close()


def test_a_served_pipeline_with_functions_runs_them_on_the_server(built: Built) -> None:
    def with_pid(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "pid": threading.get_native_id()}

    output = [UnischemaField("pid", np.int64)]
    pipeline = built.pipeline("id", executor="threads").transform(with_pid, output=output).batch(4)
    with serve(pipeline) as server:
        found = {thread for batch in Pipeline(address=server.address) for thread in batch["pid"].tolist()}
    assert threading.get_native_id() not in found


def test_requests_are_whole_messages(built: Built) -> None:
    with serve(built.pipeline("id").batch(4)) as server:
        left, right = socket.socketpair()
        with left, right, socket.create_connection((server.endpoint.host, server.endpoint.port)) as slow:
            send_json(left, {"version": 1, "do": "length", "token": server.token})
            for byte in right.recv(4096):
                slow.sendall(bytes([byte]))
            assert b'"length": 22' in slow.recv(4096)
