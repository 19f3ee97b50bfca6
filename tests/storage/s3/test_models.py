"""botocore's service models: the same data, parsed so that other threads get their turns."""

from __future__ import annotations

import gzip
import json
import sys
from collections import OrderedDict
from pathlib import Path
from types import CodeType, FrameType

import pytest
from botocore.loaders import JSONFileLoader, create_loader

from asyncckpt.storage.s3.models import YieldingFiles, model_loader

OBJECTS = 1000


def test_the_models_are_botocores() -> None:
    # Not the cached one: botocore adds to the models that it makes clients from.
    ours, theirs = model_loader.__wrapped__(None), create_loader(None)
    for kind in ("service-2", "endpoint-rule-set-1"):
        found = ours.load_service_model("s3", kind, api_version=None)
        assert found == theirs.load_service_model("s3", kind, api_version=None)
        assert isinstance(found, OrderedDict)
    assert ours.load_data("endpoints") == theirs.load_data("endpoints")


@pytest.mark.parametrize("extension", [".json", ".json.gz", ""])
def test_files_are_found_as_botocore_finds_them(tmp_path: Path, extension: str) -> None:
    content = b'{"a": [1, {"b": "\xc3\xbc"}]}'
    (tmp_path / f"model{extension}").write_bytes(
        gzip.compress(content) if extension.endswith("gz") else content
    )
    for files in (YieldingFiles(), JSONFileLoader()):
        assert files.exists(str(tmp_path / "model")) is bool(extension)
        assert files.load_file(str(tmp_path / "model")) == ({"a": [1, {"b": "ü"}]} if extension else None)


def test_python_code_runs_for_each_object(tmp_path: Path) -> None:
    """Between two lines of Python another thread can have the GIL; inside one call of C none can."""
    (tmp_path / "model.json").write_text(json.dumps([{"name": number} for number in range(OBJECTS)]))
    called: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code)

    sys.setprofile(note)
    try:
        YieldingFiles().load_file(str(tmp_path / "model"))
    finally:
        sys.setprofile(None)
    assert len(called) >= OBJECTS
