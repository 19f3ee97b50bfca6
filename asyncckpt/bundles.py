"""METAGRAPH bundles beyond saving and loading them: the base of a delta, and the key that checks a signature."""

from asyncckpt.formats.metagraph.delta import BaseBundle, base_bundle
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.metagraph.signature import verify_key_of

__all__ = ["BaseBundle", "MetagraphFormat", "base_bundle", "verify_key_of"]
