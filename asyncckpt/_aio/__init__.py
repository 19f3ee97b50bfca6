"""The asyncio pieces that everything else stands on.

`shield` and `run_shielded` let a coroutine reach its end whatever happens to its caller, for a bounded time.
`WorkerThreads` and `run_in_thread` run blocking code; its thread is done before anyone sees a cancel.
`fan_out` keeps a bounded number of coroutines in flight, `ByteBudget` a bounded number of bytes. None of them
holds a loop, an executor or a thread in a module global. `gc_paused` keeps the garbage collector out of
short bursts of work on very many objects, and `dismantle` lets go of them. `StartingUnlisted` keeps the tasks of
drivers out of everybody's reach.
"""

from asyncckpt._aio.budget import ByteBudget, Reservation
from asyncckpt._aio.fanout import fan_out
from asyncckpt._aio.gc_pause import dismantle, gc_paused
from asyncckpt._aio.shield import ShieldBrokenError, Shielded, ShieldTimeoutError, run_shielded, shield
from asyncckpt._aio.threads import WorkerThreads, run_in_thread
from asyncckpt._aio.unlisted import StartingUnlisted

__all__ = [
    "ByteBudget",
    "Reservation",
    "ShieldBrokenError",
    "ShieldTimeoutError",
    "Shielded",
    "StartingUnlisted",
    "WorkerThreads",
    "dismantle",
    "fan_out",
    "gc_paused",
    "run_in_thread",
    "run_shielded",
    "shield",
]
