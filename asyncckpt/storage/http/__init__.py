"""HTTP in worker threads: requests that are signed elsewhere, bytes straight from and into their buffers."""
