"""The frame around a payload, and how likely it is that chance alone gives one.

A frame is a 4-bit version, the payload with a closing 1 bit and zeros after it, and a 16-bit cyclic
redundancy check of both, which starts from a prefix that the key decides. It is the message of a BCH code.

Every sign that the mark is read with comes from the key. For an image that was made without the key, the
channel bits are therefore independent fair coins over the choice of the key, and false-positive probabilities
are exact statements about binomials, not estimates from images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from assay.errors import InputError
from assay.methods.panorama_watermark.bch import CHASE_POSITIONS, CODES, Code, decode_soft, encode
from assay.methods.panorama_watermark.keys import Key

VERSION = 1
_VERSION_BITS, _CHECK_BITS = 4, 16
_CHECK_POLYNOMIAL = 0x1021


def capacity(code: Code) -> int:
    """The longest payload of a code, in bytes; one bit ends the payload."""
    return (code.k - _VERSION_BITS - _CHECK_BITS - 1) // 8


def as_payload(payload: bytes | str | int) -> bytes:
    """A payload as bytes: text as UTF-8, a whole number as its shortest big-endian bytes.

    Raises:
        InputError: the payload is none of these, or a negative number.
    """
    if isinstance(payload, (bytes, bytearray)):
        return bytes(payload)
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError:
            raise InputError(f"the payload {payload!r} isn't text: give its bytes (--hex)") from None
    if isinstance(payload, int) and not isinstance(payload, bool):
        if payload < 0:
            raise InputError(f"a payload number must not be negative, got {payload}")
        return payload.to_bytes(max(1, (payload.bit_length() + 7) // 8), "big")
    raise InputError(f"a payload is bytes, text or a whole number, not {type(payload).__name__}")


def check_length(payload: bytes, code: Code) -> None:
    """Refuse a payload that the code cannot hold.

    Raises:
        InputError: it is too long; the message names the next larger code, if there is one.
    """
    if len(payload) <= capacity(code):
        return
    larger = sorted((other for other in CODES.values() if capacity(other) >= len(payload)), key=capacity)
    longest = max(map(capacity, CODES.values()))
    remedy = f"use the code {larger[0].name}" if larger else f"no code holds more than {longest} bytes"
    raise InputError(
        f"the payload has {len(payload)} bytes, {code.name} holds {capacity(code)}: {remedy}, or shorten it"
    )


def _check_value(key: Key, bits: np.ndarray) -> np.ndarray:
    register = 0xFFFF
    for bit in np.concatenate([key.bits("frame check", 16), bits]):
        register ^= int(bit) << 15
        register = ((register << 1) ^ (_CHECK_POLYNOMIAL if register & 0x8000 else 0)) & 0xFFFF
    return np.array([register >> shift & 1 for shift in range(15, -1, -1)], dtype=np.uint8)


def frame_bits(payload: bytes, key: Key, code: Code) -> UInt8[np.ndarray, " n"]:
    """The channel bits of a payload.

    Raises:
        InputError: the payload is too long for the code.
    """
    check_length(payload, code)
    room = code.k - _VERSION_BITS - _CHECK_BITS
    body = np.zeros(room, dtype=np.uint8)
    body[: 8 * len(payload)] = np.unpackbits(np.frombuffer(payload, np.uint8))
    body[8 * len(payload)] = 1
    version = np.array([VERSION >> shift & 1 for shift in range(_VERSION_BITS - 1, -1, -1)], np.uint8)
    checked = np.concatenate([version, body])
    return encode(np.concatenate([checked, _check_value(key, checked)]), code)


def _open(message: np.ndarray, key: Key) -> bytes | None:
    """The payload of a message, or None where it is no frame of this key."""
    checked, check = message[:-_CHECK_BITS], message[-_CHECK_BITS:]
    version = int("".join(map(str, checked[:_VERSION_BITS])), 2)
    body = checked[_VERSION_BITS:]
    ends = np.flatnonzero(body)
    if version != VERSION or not len(ends) or ends[-1] % 8:
        return None
    if not np.array_equal(_check_value(key, checked), check):
        return None
    return np.packbits(body[: ends[-1]]).tobytes()


@dataclass(frozen=True)
class Decoded:
    """A payload that was read, and how many of the channel bits had to be corrected for it."""

    payload: bytes
    errors: int


def read_frame(soft: Float[np.ndarray, " n"], key: Key, code: Code) -> Decoded | None:
    """The payload in soft channel values (positive means 0), or None: none is given unverified."""
    word = decode_soft(soft, code, lambda message: _open(message, key) is not None)
    if word is None:
        return None
    payload = _open(word[code.n - code.k :], key)
    assert payload is not None
    return Decoded(payload, int(np.count_nonzero((soft < 0) != word)))


def blind_false_positive(code: Code, bands: int) -> float:
    """A bound on the probability that an image without the mark yields any payload.

    Words within t of a code word are this fraction of all words; soft decoding tries 64 of them, a frame's
    check lets 2^-16 of them through, and each band is one more try: P <= bands * 64 * 2^-16 * fraction. The
    version and the payload's end would lower it further.
    """
    ball = sum(math.comb(code.n, errors) for errors in range(code.t + 1))
    fraction = ball / 2 ** (code.n - code.k)
    return min(1.0, bands * 2**CHASE_POSITIONS * 2.0**-_CHECK_BITS * fraction)


def match_p_value(matches: int, bits: int, tries: int = 1) -> float:
    """The probability that `bits` fair coins match a given word in at least `matches` places.

    Args:
        matches: channel bits that agree with the payload's.
        bits: channel bits.
        tries: how many bands were tried for the best match (Bonferroni's bound).
    """
    words = sum(math.comb(bits, agreed) for agreed in range(max(matches, 0), bits + 1))
    return min(1.0, tries * (words / 2**bits))
