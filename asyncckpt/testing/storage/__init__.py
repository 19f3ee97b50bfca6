"""The contract of storages, and storages around a storage."""
