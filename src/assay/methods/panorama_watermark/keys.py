"""The secret key: made, kept in a text file, stretched into what the engines need, and never shown.

All of the mark's randomness is derived from the secret by standard functions (scrypt, HKDF-SHA256,
SHAKE-256), which give the same bytes on every platform. They are part of the format: changing them orphans
every image that is marked already. Test vectors are frozen in the tests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from pathlib import Path

import numpy as np

from assay.errors import InputError

SALT = b"assay.panorama_watermark.v1"
SHORTEST = 16
_BEGIN, _END = "-----BEGIN ASSAY WATERMARK KEY-----", "-----END ASSAY WATERMARK KEY-----"


class Key:
    """A secret of at least 16 bytes. Its text forms show the key's id, never the secret.

    Args:
        secret: the bytes of the key; for a phrase that a person remembers use `from_passphrase`.

    Raises:
        InputError: the secret isn't bytes or is shorter than 16 bytes.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes):
        if not isinstance(secret, (bytes, bytearray)):
            raise InputError(
                f"a key is bytes, not {type(secret).__name__}; for a phrase use Key.from_passphrase "
                "(--passphrase)"
            )
        if len(secret) < SHORTEST:
            raise InputError(
                f"the key has {len(secret)} bytes, at least {SHORTEST} are needed; make one with "
                "Key.generate() or `assay panorama-watermark keygen`, or stretch a phrase with "
                "Key.from_passphrase (--passphrase)"
            )
        self._secret = bytes(secret)

    @classmethod
    def generate(cls) -> Key:
        """A new random key of 32 bytes, from the operating system."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_passphrase(cls, phrase: str) -> Key:
        """A key from a phrase, by scrypt (n = 2^14, r = 8, p = 1), so that guessing phrases costs time.

        Raises:
            InputError: the phrase is shorter than 12 characters.
        """
        if len(phrase) < 12:
            raise InputError(f"the passphrase has {len(phrase)} characters, at least 12 are needed")
        return cls(
            hashlib.scrypt(phrase.encode(errors="surrogateescape"), salt=SALT, n=2**14, r=8, p=1, dklen=32)
        )

    @classmethod
    def read(cls, path: Path | str) -> Key:
        """Read a key file that `write` wrote.

        Raises:
            InputError: there is no such file, or it isn't a key file; the message doesn't quote its content.
        """
        try:
            lines = Path(path).read_text(encoding="ascii").split()
        except OSError as error:
            raise InputError(f"the key file {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            lines = []
        text = " ".join(lines)
        if not (text.startswith(_BEGIN) and text.endswith(_END)):
            raise InputError(f"{path} is not a key file: make one with `assay panorama-watermark keygen`")
        try:
            secret = base64.b64decode(text[len(_BEGIN) : -len(_END)].replace(" ", ""), validate=True)
        except binascii.Error:
            raise InputError(f"the key file {path} is damaged") from None
        return cls(secret)

    def write(self, path: Path | str) -> None:
        """Write the key to a new file that only its owner can read (mode 0600).

        Raises:
            InputError: the file exists already: overwriting a key would orphan the images marked with it.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(
                f"{path} exists; images marked with that key would be lost: choose another name"
            ) from None
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{_BEGIN}\n{base64.b64encode(self._secret).decode()}\n{_END}\n")

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that tell keys apart in reports and say nothing about the secret."""
        return hmac.new(self._secret, SALT + b" key id", hashlib.sha256).hexdigest()[:8]

    def derive(self, info: str) -> bytes:
        """32 bytes for one purpose: HKDF-SHA256 (RFC 5869) of the secret with the salt of this format."""
        extracted = hmac.new(SALT, self._secret, hashlib.sha256).digest()
        return hmac.new(extracted, info.encode() + b"\x01", hashlib.sha256).digest()

    def stream(self, info: str, size: int) -> bytes:
        """`size` pseudorandom bytes for one purpose: SHAKE-256 of `derive(info)`."""
        return hashlib.shake_256(self.derive(info)).digest(size)

    def bits(self, info: str, count: int) -> np.ndarray:
        """`count` pseudorandom bits (uint8), most significant bit of each byte first."""
        return np.unpackbits(np.frombuffer(self.stream(info, -(-count // 8)), np.uint8))[:count]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Key(id={self.id})"

    def __reduce__(self):
        return Key, (self._secret,)


def as_key(key: Key | bytes | str) -> Key:
    """A `Key` from a key, from bytes, or from a passphrase."""
    if isinstance(key, Key):
        return key
    return Key.from_passphrase(key) if isinstance(key, str) else Key(key)
