"""The contract of formats."""
