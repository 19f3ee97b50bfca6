"""The FlatBuffers of SameDiff's graphs: read, built and amended."""
