"""s3fs's file system, made from the user's options: its session, its credentials, its client.

Everything in here may block (imports, files), so it is called in a thread.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from asyncckpt.errors import MissingExtraError, StorageError
from asyncckpt.storage.s3.models import load_models, model_loader

if TYPE_CHECKING:
    from asyncckpt.storage.http.connections import ConnectionSettings

_quiet: ContextVar[bool] = ContextVar("asyncckpt_s3_quiet", default=False)
# They log signatures, signed headers and session tokens, at DEBUG level.
_TALKATIVE = (
    "botocore.auth",
    "botocore.endpoint",
    "aiobotocore.endpoint",
    "botocore.awsrequest",
    "botocore.client",
)


class _SecretsFilter(logging.Filter):
    """Drops what the driver logs while it signs or sends for us; other users of the driver keep their logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _quiet.get()


_SECRETS_FILTER = _SecretsFilter()


@contextmanager
def secrets_unlogged() -> Iterator[None]:
    """While the block runs, nothing that the driver does for this task reaches its talkative loggers."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def load_driver() -> None:
    """Import s3fs and what it stands on. Blocks. Raises MissingExtraError."""
    try:
        import aiobotocore.session  # noqa: F401
        import s3fs  # noqa: F401

        import asyncckpt.storage.http.transfer  # noqa: F401 - brings urllib3; the loop takes it from sys.modules
    except ImportError as error:
        raise MissingExtraError(f"s3:// needs {error.name or 's3fs'}: pip install 'asyncckpt[s3]'") from error


def make_filesystem(options: Mapping[str, Any]) -> Any:
    """An s3fs file system for the running loop, with its session loaded. Raises MissingExtraError, StorageError."""
    load_driver()
    import aiobotocore.session
    import s3fs

    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_SECRETS_FILTER)
    merged = {**options, "asynchronous": True, "skip_instance_cache": True, "use_listings_cache": False}
    merged["config_kwargs"] = _config(options.get("config_kwargs") or {})
    try:
        filesystem = s3fs.S3FileSystem(**merged)
        if filesystem.session is None:
            session = filesystem.session = aiobotocore.session.AioSession(**filesystem.kwargs)
            session.register_component("data_loader", model_loader(session.get_config_variable("data_path")))
    except (TypeError, KeyError) as error:
        raise StorageError(f"s3fs does not take these storage_options: {error}") from error
    load_models(filesystem.session)
    return filesystem


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    from botocore.config import Config

    defaults = {
        "signature_version": "s3v4",
        # The checksum that we send and verify is our own.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    known = getattr(Config, "OPTION_DEFAULTS", {})
    usable = {name: value for name, value in defaults.items() if name in known}
    return {**usable, **given, "retries": {"total_max_attempts": 1, "mode": "standard"}}


def connection_settings(filesystem: Any, client: Any, *, idle: int) -> ConnectionSettings:
    """How the client reaches its endpoint: timeouts, trust, proxies; the same for our own connections."""
    from botocore.utils import get_environ_proxies

    from asyncckpt.storage.http.connections import ConnectionSettings

    config = client.meta.config
    proxies = config.proxies
    if proxies is None:
        proxies = get_environ_proxies(client.meta.endpoint_url)
    proxies = {scheme: _with_scheme(url) for scheme, url in proxies.items() if url}
    special: Mapping[str, Any] = config.proxies_config or {}
    verify = filesystem.client_kwargs.get("verify")
    if verify is None:
        verify = filesystem.session.get_config_variable("ca_bundle")
    proxy_tls = None
    if any(url.startswith("https:") for url in proxies.values()):
        proxy_tls = _trust(special.get("proxy_ca_bundle") or verify, special.get("proxy_client_cert"))
    return ConnectionSettings(
        connect_timeout=float(config.connect_timeout),
        read_timeout=float(config.read_timeout),
        idle_connections=idle,
        tls=_trust(verify, config.client_cert) if client.meta.endpoint_url.startswith("https:") else None,
        proxies=proxies,
        proxy_tls=proxy_tls,
    )


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy else f"http://{proxy.removeprefix('//')}"


def _trust(verify: bool | str | None, client_cert: Any) -> ssl.SSLContext:
    """A TLS context as botocore would make it. `verify`: a bundle's path, False for no checks, else the default."""
    from botocore.httpsession import get_cert_path

    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=get_cert_path(True if verify is None else verify))
    if isinstance(client_cert, str):
        context.load_cert_chain(client_cert)
    elif client_cert:
        context.load_cert_chain(client_cert[0], keyfile=client_cert[1])
    return context
