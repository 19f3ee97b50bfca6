"""MLCP: one file, the default format; and sets of `.shard` files."""
