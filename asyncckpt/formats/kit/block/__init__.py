"""The `asyncckpt` block: its text, the order of what it lists, the CRC32C of all that is not payload, and headers."""
