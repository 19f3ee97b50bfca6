"""GPTRSCHK and GPTRSTEN: the files of gpt-rs."""
