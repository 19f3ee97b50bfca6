"""SDNB: SameDiff models, in one file or in shards."""
