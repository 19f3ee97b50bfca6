"""From a state to bytes that nobody can change: captured at one instant, then copied to memory of a stager."""
