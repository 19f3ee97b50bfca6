"""How many modules a reader has to follow from the beginning of a call to its end: as measured, to be lowered."""

from __future__ import annotations

import pytest

from tests.path_of_a_call import paths
from tests.servers import S3Bucket

MOST_OF_A_SAVE = 71  # to become 30
MOST_OF_A_LOAD = 64  # to become 28


@pytest.mark.thorough
async def test_a_call_runs_through_few_modules(minio_bucket: S3Bucket) -> None:
    saved, loaded = await paths(minio_bucket)
    assert "operations.save" in saved
    assert "storage.http.transfer" in saved, "the worker threads are followed, too"
    assert len(saved) <= MOST_OF_A_SAVE, list(saved)
    assert len(loaded) <= MOST_OF_A_LOAD, list(loaded)
