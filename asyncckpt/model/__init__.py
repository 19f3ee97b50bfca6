"""Values only: no I/O, no asyncio."""
