"""SIGNATURE: who vouches for a bundle. 80 bytes: key id 16 (BLAKE3 of the public key), Ed25519 signature 64.

What is signed is the header (104 bytes) ‖ the root (32 bytes), and the root covers every section.
"""

from __future__ import annotations

from asyncckpt.errors import SignatureError
from asyncckpt.formats.metagraph.hashing import ID_BYTES, hash_of, require

KEY_BYTES = 32
SIGNATURE_BYTES = ID_BYTES + 64
_ED25519 = "cryptography.hazmat.primitives.asymmetric.ed25519"


def sign(signing_key: bytes, header: bytes, root: bytes) -> bytes:
    """The section's bytes."""
    private = require(_ED25519).Ed25519PrivateKey.from_private_bytes(signing_key)
    signature: bytes = private.sign(header + root)
    return key_id(verify_key_of(signing_key)) + signature


def check_signature(section: bytes, verify_key: bytes, header: bytes, root: bytes) -> None:
    """Raises SignatureError when the bundle was signed with another key, or changed since."""
    if len(section) != SIGNATURE_BYTES:
        raise SignatureError(f"the signature has {len(section)} bytes, not {SIGNATURE_BYTES}")
    if section[:ID_BYTES] != key_id(verify_key):
        raise SignatureError(
            f"the bundle was signed with the key {section[:ID_BYTES].hex()}, not with {key_id(verify_key).hex()}"
        )
    public = require(_ED25519).Ed25519PublicKey.from_public_bytes(verify_key)
    try:
        public.verify(section[ID_BYTES:], header + root)
    except require("cryptography.exceptions").InvalidSignature:
        raise SignatureError("the signature does not fit the bundle: it was changed after signing") from None


def verify_key_of(signing_key: bytes) -> bytes:
    """The public key, 32 bytes, that checks what the private key signs. Raises SignatureError."""
    require_keys(signing_key)
    ed25519 = require(_ED25519)
    public: bytes = ed25519.Ed25519PrivateKey.from_private_bytes(signing_key).public_key().public_bytes_raw()
    return public


def key_id(verify_key: bytes) -> bytes:
    return hash_of(verify_key)[:ID_BYTES]


def require_keys(*keys: bytes | None) -> None:
    """Raises SignatureError for keys that Ed25519 can't use."""
    for key in keys:
        if key is not None and (not isinstance(key, bytes) or len(key) != KEY_BYTES):
            raise SignatureError(f"an Ed25519 key is {KEY_BYTES} raw bytes long")
