"""Formats: bytes to tensors and back. Siblings of `storage`; neither imports the other."""
