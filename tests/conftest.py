"""Fixtures and guards of the whole suite: real servers, a free event loop, nothing left over.

Options: `--loop=uvloop` runs every async test on uvloop; `--hypothesis-profile=soak` runs many more examples.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

# Read by gcsfs when it is imported: without it every bucket is probed over gRPC, 60 s on an emulator.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
# A real account of whoever runs the tests must never be touched by them.
for _name in (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "STORAGE_EMULATOR_HOST",
):
    os.environ.pop(_name, None)
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from tests import guards
from tests.servers import GcsBucket, GcsServer, S3Bucket, S3Server, ServerUnavailableError, Toxiproxy
from tests.servers.keeper import SOCKET_VARIABLE, AnyServer, Keeper, ask_for

SERVER_FIXTURES = frozenset({"minio", "minio_tls", "seaweedfs", "fake_gcs", "toxiproxy"})
DEFAULT_SWEEP_SEED = 20250907
_NOT_TESTED = "NOT TESTED, no server: "
_RUNNER_FIXTURE = "_function_scoped_runner"  # pytest-asyncio's runner of the test's own loop

settings.register_profile(
    "deterministic",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "soak",
    derandomize=False,
    database=None,
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("deterministic")

ServerT = TypeVar("ServerT", bound=AnyServer)


# --- the run ----------------------------------------------------------------------------------------------------


class _UvloopFactory:
    """Registered only on request: with no such hook, pytest-asyncio uses asyncio's own loop."""

    def pytest_asyncio_loop_factories(self) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
        import uvloop

        return {"uvloop": uvloop.new_event_loop}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop", choices=("asyncio", "uvloop"), default="asyncio", help="event loop of async tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--loop") == "uvloop":
        config.pluginmanager.register(_UvloopFactory(), "asyncckpt-uvloop")
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the address from this process
        keeper = Keeper()
        config.add_cleanup(keeper.stop)
        os.environ[SOCKET_VARIABLE] = keeper.address


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [
        f"event loop: {config.getoption('--loop')}",
        f"sweep seed: {_sweep_seed()} (set ASYNCCKPT_SWEEP_SEED to change it)",
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses a server, so that `make test-quick` needs no help from authors."""
    for item in items:
        assert " at 0x" not in item.nodeid, (
            f"{item.nodeid} has an address in its name: give the parameter an id"
        )
        if SERVER_FIXTURES.intersection(_fixtures_of(item)):
            item.add_marker(pytest.mark.server)


def _fixtures_of(item: pytest.Item) -> set[str]:
    """The fixtures that a test names, also those that it asks for by a parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    asked = {value.removesuffix("_bucket") for value in parameters.values() if isinstance(value, str)}
    return {*getattr(item, "fixturenames", ()), *asked}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if _has_reason(report)
    ]
    missing = [reason.removeprefix("Skipped: ") for reason in reasons if _NOT_TESTED in reason]
    for reason in sorted(set(missing)):
        terminalreporter.write_line(f"{missing.count(reason)} tests {reason}", red=True, bold=True)


def _has_reason(report: pytest.TestReport) -> bool:
    return isinstance(report.longrepr, tuple)


def _sweep_seed() -> int:
    return int(os.environ.get("ASYNCCKPT_SWEEP_SEED", DEFAULT_SWEEP_SEED))


@pytest.fixture
def sweep_seed() -> int:
    """The seed of sampled sweeps; the header of the run prints it."""
    return _sweep_seed()


@pytest.fixture(params=["small", "large"])
def file_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same state as one object, and in parts."""
    if request.param == "large":
        monkeypatch.setattr("asyncckpt.operations.writing.file.SMALL_FILE_BYTES", 100)
    return str(request.param)


# --- guards -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _loop_guard() -> BlockBuster:
    return guards.loop_guard()


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop(request: pytest.FixtureRequest, _loop_guard: BlockBuster) -> Iterator[None]:
    if request.node.get_closest_marker("blocking_allowed"):
        yield
        return
    _loop_guard.activate()
    try:
        yield
    finally:
        _loop_guard.deactivate()


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = guards.threads_now()
    yield
    left = guards.new_threads(before)
    assert not left, f"threads left over after the test: {', '.join(left)}"


@pytest.fixture(autouse=True)
def _no_task_left(request: pytest.FixtureRequest, _no_thread_left: None) -> Iterator[None]:
    """Looks before the loop is closed, because closing it would cancel the evidence."""
    if _RUNNER_FIXTURE not in request.fixturenames:
        yield
        return
    runner = cast("asyncio.Runner", request.getfixturevalue(_RUNNER_FIXTURE))
    yield
    left = runner.run(guards.unfinished_tasks())
    assert not left, f"tasks left over after the test: {', '.join(left)}"


# --- servers ----------------------------------------------------------------------------------------------------


def _server(name: str, kind: type[ServerT]) -> ServerT:
    """Return the run's server; when it can't be had fail with CI set, skip loudly otherwise."""
    try:
        server = ask_for(name)
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no {name} server, and CI is set: {error}", pytrace=False)
        pytest.skip(f"{_NOT_TESTED}{name}: {error}")
    assert isinstance(server, kind)
    return server


@pytest.fixture(scope="session")
def minio() -> S3Server:
    return _server("minio", S3Server)


@pytest.fixture(scope="session")
def minio_tls() -> S3Server:
    return _server("minio_tls", S3Server)


@pytest.fixture(scope="session")
def seaweedfs() -> S3Server:
    return _server("seaweedfs", S3Server)


@pytest.fixture(scope="session")
def fake_gcs() -> GcsServer:
    return _server("fake_gcs", GcsServer)


@pytest.fixture(scope="session")
def toxiproxy() -> Toxiproxy:
    return _server("toxiproxy", Toxiproxy)


@pytest.fixture
def minio_bucket(minio: S3Server) -> Iterator[S3Bucket]:
    bucket = minio.new_bucket()
    yield bucket
    bucket.remove()


@pytest.fixture
def minio_tls_bucket(minio_tls: S3Server) -> Iterator[S3Bucket]:
    bucket = minio_tls.new_bucket()
    yield bucket
    bucket.remove()


@pytest.fixture
def seaweedfs_bucket(seaweedfs: S3Server) -> Iterator[S3Bucket]:
    bucket = seaweedfs.new_bucket()
    yield bucket
    bucket.remove()


@pytest.fixture
def gcs_bucket(fake_gcs: GcsServer) -> Iterator[GcsBucket]:
    bucket = fake_gcs.new_bucket()
    yield bucket
    bucket.remove()
