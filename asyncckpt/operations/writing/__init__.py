"""Writing a checkpoint: staged, planned, written in parts, committed."""
