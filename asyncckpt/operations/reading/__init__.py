"""Reading a checkpoint: its files, what to fetch of them, and into what."""
