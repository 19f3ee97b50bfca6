"""Local disks: a hidden name while it is written, synced, and published in one step."""

from asyncckpt.storage.local.storage import LocalStorage

__all__ = ["LocalStorage"]
