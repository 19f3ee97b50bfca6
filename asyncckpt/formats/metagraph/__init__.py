"""METAGRAPH: bundles, compressed, encrypted, signed, and deltas of others."""
