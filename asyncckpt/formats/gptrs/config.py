"""The config of a GPTRSCHK file, which is the custom field `gptrs` of the metadata."""

from __future__ import annotations

from collections.abc import Mapping

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.binary import decode_utf8
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.model.metadata import CheckpointMetadata, Json
from asyncckpt.model.state.beyond_json import JsonWriter

CUSTOM_FIELD = "gptrs"
"""The custom field with `kind`, `config`, `runtime` and `requiresGrad` (names); `configText` is what was read."""
_CONFIG_MEMBERS = ("kind", "config", "runtime")
_NO_CONFIG: dict[str, Json] = {"kind": "asyncckpt", "config": {}}


def gptrs_field(metadata: CheckpointMetadata) -> Mapping[str, Json]:
    """The custom field of this format; empty where there is none. Raises LayoutError when it is no object."""
    field = metadata.custom_fields.get(CUSTOM_FIELD, {})
    if not isinstance(field, Mapping):
        raise LayoutError(f"the custom field {CUSTOM_FIELD!r} is {type(field).__name__}, not an object")
    return field


def encode_config(metadata: CheckpointMetadata) -> bytes:
    """The config: verbatim as it was once read, unless it was changed since.

    Raises LayoutError, UnsupportedStateError.
    """
    field = gptrs_field(metadata)
    config = {name: field[name] for name in _CONFIG_MEMBERS if name in field}
    if "kind" not in config and "config" not in config:
        config = _NO_CONFIG
    if not isinstance(config.get("kind"), str) or "config" not in config:
        raise LayoutError(
            f"the custom field {CUSTOM_FIELD!r} needs a 'kind', which is a string, and a 'config'"
        )
    text = field.get("configText")
    if isinstance(text, str):
        data = text.encode("utf-8", "surrogatepass")
        if decode_config(data) == {**config, "configText": text}:
            return data
    # What JSON can't say is in the block; gpt-rs gets what comes nearest.
    nearest = JsonWriter().value(config, (), f"metadata.custom_fields[{CUSTOM_FIELD!r}]")
    return dump_json(nearest).encode("ascii")


def decode_config(data: memoryview | bytes) -> dict[str, Json]:
    """Kind, config, runtime, and the text itself; an object without a kind is gpt's. Raises LayoutError."""
    value = load_json(data, "the config")
    if not isinstance(value, dict):
        raise LayoutError(f"the config is {type(value).__name__}, not an object")
    if not isinstance(value.get("kind"), str) or "config" not in value:
        value = {"kind": "gpt", "config": value}
    members = {name: value[name] for name in _CONFIG_MEMBERS if name in value}
    return {**members, "configText": decode_utf8(data, "the config")}
