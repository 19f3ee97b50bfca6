"""What all formats are made of: plans and indexes, the block, JSON and ZIP, encoding and decoding."""
