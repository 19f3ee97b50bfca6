"""States: trees of containers, arrays and plain values; captured, taken apart, and put together again."""
