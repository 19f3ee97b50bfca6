"""What every test is held to: nothing blocks the event loop, and no task or thread is left over.

The fixtures that apply these guards to every test are in conftest.py.
"""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import threading
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

from blockbuster import BlockBuster, BlockBusterFunction

P = ParamSpec("P")
T = TypeVar("T")

SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.01
_PACKAGE = Path(__file__).resolve().parents[1] / "asyncckpt"

# System calls that blockbuster does not watch by itself and that asyncckpt makes from worker threads.
_MORE_BLOCKING_CALLS = (
    "open fsync fdatasync pread preadv pwrite pwritev readv writev truncate ftruncate posix_fallocate "
    "copy_file_range lstat fstat scandir makedirs"
).split()

# (end of a file's path, functions) below which blocking is nobody's fault here.
_MAY_BLOCK: tuple[tuple[str, set[str]], ...] = (
    ("asyncckpt/_lazy.py", {"get"}),  # an import that somebody wrote where it stands
    ("asyncckpt/storage/factory.py", {"open_storage"}),  # no coroutine: it imports where it is called
    ("importlib/metadata/__init__.py", {"version", "distribution"}),
    ("linecache.py", {"checkcache", "updatecache", "getlines"}),
    ("traceback.py", {"_extract_from_extended_frame_gen", "format_exc", "print_exception"}),
    # Without keys in the options botocore looks for them in small files, in the midst of making the client.
    ("botocore/configloader.py", {"raw_config_parse", "load_config"}),
    ("tests/guards.py", {"call_blocking"}),
)

# Threads that belong to the process, not to a test.
_PROCESS_THREADS = ("MainThread", "fsspecIO", "execnet", "pytest_timeout", "pytest-", "hypothesis")


def call_blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may block the event loop, from a test's hook that asyncckpt itself calls."""
    return function(*args, **kwargs)


def loop_guard() -> BlockBuster:
    """Return the guard that makes a blocking call by asyncckpt on a running loop raise BlockingError.

    Calls made by the tests themselves and by the contract suites of `asyncckpt.testing` do not count.
    """
    package, testing = _folder_as_module(_PACKAGE), _folder_as_module(_PACKAGE / "testing")
    guard = BlockBuster(package, excluded_modules=[testing])
    modules: list[tuple[types.ModuleType, Iterable[str]]] = [
        (os, _MORE_BLOCKING_CALLS),
        (builtins, ("open",)),
        (io, ("open",)),
    ]
    for module, names in modules:
        for name in names:
            if hasattr(module, name):
                guard.functions[f"{module.__name__}.{name} (asyncckpt)"] = BlockBusterFunction(
                    module, name, scanned_modules=package, excluded_modules=[testing]
                )
    for function in guard.functions.values():
        for filename, functions in _MAY_BLOCK:
            function.can_block_in(filename, functions)
    return guard


def _folder_as_module(folder: Path) -> types.ModuleType:
    """Blockbuster takes a module only for its path; importing the real one here would hide import mistakes."""
    module = types.ModuleType(folder.name)
    module.__path__ = [str(folder) + os.sep]
    return module


async def unfinished_tasks() -> list[str]:
    """Return what is still running on this loop besides the caller, after a short time to settle."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not others or time.monotonic() > deadline:
            return [repr(task) for task in others]
        await asyncio.sleep(_POLL_SECONDS)


def threads_now() -> frozenset[threading.Thread]:
    """Return the threads that are alive."""
    return frozenset(threading.enumerate())


def new_threads(before: frozenset[threading.Thread]) -> list[str]:
    """Return the threads that came since `before` and do not end within a bounded time."""
    deadline = time.monotonic() + SETTLE_SECONDS
    left: list[str] = []
    for thread in threading.enumerate():
        if thread in before or thread.name.startswith(_PROCESS_THREADS):
            continue
        if isinstance(
            thread, threading._DummyThread
        ):  # foreign: made by C code, visible only because it ran Python
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            left.append(f"{thread.name} (daemon={thread.daemon})")
    return left
