"""SDZ: SameDiff models in a ZIP archive, compressed or stored."""
