"""Each server starts, answers, is shared by a run and is ended by whoever started it; discovery keeps its order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from tests.servers import GcsBucket, S3Bucket, S3Server, ServerUnavailableError, Toxiproxy, start_toxiproxy
from tests.servers.build import built
from tests.servers.keeper import Keeper, ask_for
from tests.servers.process import ServerProcess, data_folder, free_ports
from tests.servers.source import (
    FAKE_GCS,
    KINDS,
    MINIO,
    TOXIPROXY,
    Build,
    Program,
    Running,
    ServerKind,
    Surroundings,
    cache_folder,
    choose_source,
)

pytestmark = pytest.mark.thorough


def surroundings(*, endpoint: bool = False, on_path: bool = False, compose: bool = False) -> Surroundings:
    return Surroundings(
        environ={kind.endpoint_variable: "http://given:1/" for kind in KINDS} if endpoint else {},
        which=lambda program: f"/bin/{program}" if on_path else None,
        answers=lambda url: compose,
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
class TestDiscovery:
    def test_an_endpoint_in_the_environment_comes_first(self, kind: ServerKind) -> None:
        source = choose_source(kind, surroundings(endpoint=True, on_path=True, compose=True))
        assert source == Running("http://given:1", origin=kind.endpoint_variable)

    def test_then_the_program_on_the_path(self, kind: ServerKind) -> None:
        name = "toxiproxy-server" if kind is TOXIPROXY else kind.name
        assert choose_source(kind, surroundings(on_path=True, compose=True)) == Program(f"/bin/{name}")

    def test_then_the_compose_service_where_there_is_one(self, kind: ServerKind) -> None:
        expected = Running(kind.compose_endpoint, "docker compose") if kind.compose_endpoint else Build(kind)
        assert choose_source(kind, surroundings(compose=True)) == expected

    def test_then_a_build(self, kind: ServerKind) -> None:
        assert choose_source(kind, surroundings()) == Build(kind)

    def test_a_server_with_settings_of_our_own_is_never_somebody_elses(self, kind: ServerKind) -> None:
        around = surroundings(endpoint=True, compose=True)
        assert choose_source(kind, around, own_process=True) == Build(kind)


def test_pinned_versions_agree_with_the_compose_file() -> None:
    compose = (Path(__file__).parents[1] / "docker-compose.yml").read_text()
    assert "RELEASE.2025-09-07T16-13-09Z" in compose
    assert "20250907161309" in MINIO.version
    assert f"fake-gcs-server:{FAKE_GCS.version.removeprefix('v')}" in compose
    for kind in (MINIO, FAKE_GCS):
        assert kind.compose_endpoint is not None
        assert kind.compose_endpoint.removeprefix("http://") in compose


class Health(BaseHTTPRequestHandler):
    """A server that is well at one path only."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path in (MINIO.health_path, FAKE_GCS.health_path) else 503)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        return None


@pytest.fixture
def health_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("tool", ["curl", "wget", "bash"])
@pytest.mark.parametrize("port", [9000, 4443])
def test_a_health_check_of_the_compose_file_needs_only_one_of_its_tools(
    tool: str, port: int, health_port: int, tmp_path: Path
) -> None:
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not here")
    (tmp_path / tool).symlink_to(program)
    compose = (Path(__file__).parents[1] / "docker-compose.yml").read_text()
    [found] = [line for line in compose.splitlines() if "test:" in line and f":{port}/" in line]
    kind, command = json.loads(found.partition("test:")[2])
    assert kind == "CMD-SHELL"
    command = command.replace("$$", "$").replace(str(port), str(health_port))  # compose halves the dollars

    def is_well(command: str) -> bool:
        done = subprocess.run(
            ["/bin/sh", "-c", command], env={"PATH": str(tmp_path)}, capture_output=True, check=False
        )
        return done.returncode == 0

    assert is_well(command)
    assert not is_well(command.replace("health", "illness"))


def test_the_cache_is_the_users_own() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/asyncckpt/servers")
    assert cache_folder({"HOME": "/home/u"}) == Path("/home/u/.cache/asyncckpt/servers")


class TestBuild:
    def test_without_any_go_the_message_says_how_to_get_the_server(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.servers.build.go_commands", list)
        with pytest.raises(ServerUnavailableError, match=r"no go on the PATH.*ASYNCCKPT_TEST_S3_ENDPOINT"):
            built(MINIO, cache=tmp_path)

    def test_a_failed_build_leaves_no_program_and_tries_the_next_go(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        works = _script(tmp_path / "works", 'printf program > "$GOBIN/minio"')
        fails = _script(tmp_path / "fails", "echo no such module >&2; exit 1")
        cache = tmp_path / "cache"
        monkeypatch.setattr("tests.servers.build.go_commands", lambda: [[str(fails)]])
        with pytest.raises(ServerUnavailableError, match="no such module"):
            built(MINIO, cache=cache)
        assert not list(cache.rglob("minio"))
        monkeypatch.setattr("tests.servers.build.go_commands", lambda: [[str(fails)], [str(works)]])
        assert built(MINIO, cache=cache).read_text() == "program"
        assert sorted(path.name for path in cache.iterdir()) == [MINIO.cache_name, f"{MINIO.cache_name}.lock"]

    def test_a_build_stops_when_asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        forever = _script(tmp_path / "forever", "exec sleep 600")
        monkeypatch.setattr("tests.servers.build.go_commands", lambda: [[str(forever)]])
        with pytest.raises(ServerUnavailableError, match="the build was stopped"):
            built(MINIO, cache=tmp_path / "cache", should_stop=lambda: True)


def _script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class TestProcess:
    def test_a_server_that_ends_at_once_is_reported_with_its_words(self) -> None:
        with ServerProcess(["/bin/sh", "-c", "echo out of luck; exit 3"], data_folder("test")) as server:
            with pytest.raises(ServerUnavailableError, match=r"ended with 3: out of luck"):
                server.wait_until(lambda: False)
        assert not server.folder.exists()

    def test_a_silent_server_is_given_up(self) -> None:
        with ServerProcess(["/bin/sleep", "600"], data_folder("test")) as server:
            with pytest.raises(ServerUnavailableError, match="no answer within 0 s"):
                server.wait_until(lambda: False, timeout=0.1)
        assert not _is_alive(server.pid)

    def test_free_ports_are_different(self) -> None:
        assert len(set(free_ports(20))) == 20

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
    def test_a_server_dies_with_a_starter_that_is_killed(self, tmp_path: Path) -> None:
        code = (
            "import sys, time; from pathlib import Path; from tests.servers.process import ServerProcess\n"
            "server = ServerProcess(['/bin/sleep', '600'], Path(sys.argv[1]))\n"
            "print(server.pid, flush=True); time.sleep(600)"
        )
        starter = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE
        )
        with starter:
            assert starter.stdout is not None
            pid = int(starter.stdout.readline())
            _eventually(lambda: _name_of(pid) == "sleep")
            starter.kill()
        _eventually(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    return bool(_name_of(pid))


def _name_of(pid: int) -> str:
    """Return the name of a running process, or nothing when it is over (or only waits to be reaped)."""
    command = ["ps", "-o", "stat=,comm=", "-p", str(pid)]
    words = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return "" if not words or words[0].startswith("Z") else words[1]


def _eventually(condition: Callable[[], bool], *, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {timeout} s"
        time.sleep(0.02)


@pytest.mark.server
class TestKeeper:
    def test_one_server_for_everybody_and_none_afterwards(self, toxiproxy: Toxiproxy) -> None:
        keeper = Keeper()
        try:
            first = ask_for("toxiproxy", keeper.address)
            assert ask_for("toxiproxy", keeper.address) == first
            assert first != toxiproxy, "another keeper's server is another server"
            assert urlopen(f"{first.endpoint_url}/version", timeout=5).status == 200
        finally:
            keeper.stop()
        assert not Path(keeper.address).parent.exists()
        with pytest.raises(URLError):
            urlopen(f"{first.endpoint_url}/version", timeout=5)

    @pytest.mark.usefixtures("toxiproxy")
    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
    def test_a_killed_keeper_takes_its_servers_along(self) -> None:
        keeper = Keeper()
        try:
            server = ask_for("toxiproxy", keeper.address)
            os.kill(keeper.pid, signal.SIGKILL)
            _eventually(lambda: not _listens(server.endpoint_url))
        finally:
            keeper.stop()

    @pytest.mark.usefixtures("toxiproxy")
    def test_a_killed_run_leaves_neither_keeper_nor_server(self) -> None:
        code = (
            "import time; from tests.servers.keeper import Keeper, ask_for\n"
            "keeper = Keeper(); server = ask_for('toxiproxy', keeper.address)\n"
            "print(keeper.pid, server.endpoint_url, keeper.address, flush=True); time.sleep(600)"
        )
        run = subprocess.Popen(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
        )
        with run:
            assert run.stdout is not None
            pid, endpoint_url, address = run.stdout.readline().split()
            assert _listens(endpoint_url)
            run.kill()
        _eventually(lambda: not _is_alive(int(pid)) and not _listens(endpoint_url))
        assert not Path(address).parent.exists()

    def test_what_cannot_be_had_says_why(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
        with pytest.raises(ServerUnavailableError, match=r"could not build github.com/Shopify/toxiproxy"):
            start_toxiproxy()


def _listens(endpoint_url: str) -> bool:
    host, port = endpoint_url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


class S3Behaviour:
    """What the S3 tests rely on, in every S3 server."""

    @pytest.fixture
    def bucket(self) -> S3Bucket:
        raise AssertionError("each subclass brings its own bucket")

    def test_the_raw_look_sees_objects_and_uploads(self, bucket: S3Bucket) -> None:
        bucket.put("folder/a b", b"content", Metadata={"write-id": "1"})
        client = bucket.server.client()
        upload = client.create_multipart_upload(Bucket=bucket.name, Key="folder/part")["UploadId"]
        assert bucket.keys() == ["folder/a b"]
        assert bucket.keys("other") == []
        assert bucket.get("folder/a b") == b"content"
        assert bucket.head("folder/a b")["Metadata"] == {"write-id": "1"}
        assert bucket.uploads() == bucket.uploads("folder/") == [("folder/part", upload)]
        client.abort_multipart_upload(Bucket=bucket.name, Key="folder/part", UploadId=upload)
        bucket.delete("folder/a b")
        assert bucket.uploads() == []
        assert bucket.keys() == []

    def test_exclusive_create_is_honoured(self, bucket: S3Bucket) -> None:
        bucket.put("once", b"first", IfNoneMatch="*")
        with pytest.raises(ClientError) as refused:
            bucket.put("once", b"second", IfNoneMatch="*")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
        assert bucket.get("once") == b"first"

    def test_a_wrong_checksum_is_refused(self, bucket: S3Bucket) -> None:
        with pytest.raises(ClientError):
            bucket.put("spoiled", b"content", ChecksumCRC32C="AAAAAA==")
        assert bucket.keys() == []

    def test_a_bucket_is_removed_with_what_is_in_it(self, bucket: S3Bucket) -> None:
        other = bucket.server.new_bucket()
        other.put("a", b"")
        bucket.server.client().create_multipart_upload(Bucket=other.name, Key="b")
        other.remove()
        with pytest.raises(ClientError, match="NoSuchBucket"):
            other.keys()


class TestMinio(S3Behaviour):
    @pytest.fixture
    def bucket(self, minio_bucket: S3Bucket) -> S3Bucket:
        return minio_bucket


class TestMinioTls(S3Behaviour):
    @pytest.fixture
    def bucket(self, minio_tls_bucket: S3Bucket) -> S3Bucket:
        return minio_tls_bucket

    def test_only_the_private_authority_is_trusted(self, minio_tls: S3Server) -> None:
        assert minio_tls.endpoint_url.startswith("https://")
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urlopen(minio_tls.endpoint_url, timeout=5)


class TestSeaweedfs(S3Behaviour):
    @pytest.fixture
    def bucket(self, seaweedfs_bucket: S3Bucket) -> S3Bucket:
        return seaweedfs_bucket


def test_the_secret_is_not_in_the_repr(minio: S3Server) -> None:
    assert minio.secret_key not in repr(minio)


def test_fake_gcs_answers(gcs_bucket: GcsBucket) -> None:
    gcs_bucket.put("folder/a b", b"content")
    assert gcs_bucket.keys() == gcs_bucket.keys("folder/") == ["folder/a b"]
    assert gcs_bucket.keys("other") == []
    assert gcs_bucket.get("folder/a b") == b"content"
    assert gcs_bucket.head("folder/a b")["size"] == "7"
    gcs_bucket.delete("folder/a b")
    assert gcs_bucket.keys() == []


class TestToxiproxy:
    def test_a_proxy_passes_everything_until_it_is_spoiled(
        self, toxiproxy: Toxiproxy, minio_bucket: S3Bucket
    ) -> None:
        minio_bucket.put("key", b"content")
        with toxiproxy.proxy(minio_bucket.server.endpoint_url) as proxy:
            url = f"{proxy.endpoint_url}{MINIO.health_path}"
            assert urlopen(url, timeout=5).status == 200
            with proxy.toxic("limit_data", bytes=10), pytest.raises(BadStatusLine):
                urlopen(url, timeout=5)
            assert urlopen(url, timeout=5).status == 200
            proxy.set_enabled(False)
            with pytest.raises(URLError):
                urlopen(url, timeout=5)
            proxy.set_enabled(True)
            assert urlopen(url, timeout=5).status == 200
        assert not _listens(proxy.endpoint_url)

    def test_silence_is_a_timeout(self, toxiproxy: Toxiproxy, minio: S3Server) -> None:
        with (
            toxiproxy.proxy(minio.endpoint_url) as proxy,
            proxy.toxic("timeout", stream="upstream", timeout=0),
        ):
            with pytest.raises(TimeoutError):
                urlopen(f"{proxy.endpoint_url}{MINIO.health_path}", timeout=0.2)


def test_a_server_that_is_gone_refuses() -> None:
    (port,) = free_ports(1)
    gone = S3Server(f"http://127.0.0.1:{port}", "a", "b", "us-east-1", "gone")
    with pytest.raises(EndpointConnectionError):
        gone.client().list_buckets()
