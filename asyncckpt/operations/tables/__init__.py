"""MLDF tables, cell by cell."""
