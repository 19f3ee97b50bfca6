"""Log records of a driver without the secrets of the call that it works on.

Drivers log URLs at DEBUG level, under names that nobody knows beforehand, so this is done where records are made.
Only what is logged on behalf of our calls is changed; everybody else's records are made as before.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asyncckpt.storage.urls import Secrets

# Threads and tasks that a call starts get a copy of its context, and so its secrets.
_secrets: ContextVar[Secrets | None] = ContextVar("asyncckpt_secrets", default=None)


@contextmanager
def logs_without(secrets: Secrets) -> Iterator[None]:
    """While the block runs, what is logged for this task shows none of the secrets."""
    _install()
    token = _secrets.set(secrets)
    try:
        yield
    finally:
        _secrets.reset(token)


def _install() -> None:
    """Once, and again when somebody has put another factory in its place."""
    if not isinstance(logging.getLogRecordFactory(), _CleanRecords):
        logging.setLogRecordFactory(_CleanRecords(logging.getLogRecordFactory()))


class _CleanRecords:
    """Makes records as the factory before it does, and takes secrets out of them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._inner(*args, **kwargs)
        secrets = _secrets.get()
        if secrets is not None:
            record.msg, record.args = secrets.without(_message(record)), None
            if record.exc_info:
                told = "".join(traceback.format_exception(*record.exc_info))
                record.exc_info, record.exc_text = None, secrets.without(told).rstrip("\n")
        return record


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # A driver whose arguments do not fit its own format: logging must not fail the call for that.
        return f"{record.msg} {record.args}"
