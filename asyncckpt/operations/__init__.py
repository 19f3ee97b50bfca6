"""Operations join formats and storages: save, load, open, verify, convert, diff."""
