"""MLDF: a table of samples and fields."""
