"""Panoramas that the tests share. Small ones are marked in the low band, which is four times faster."""

import pytest

from assay.methods.panorama_watermark import attacks
from assay.methods.panorama_watermark.data import panoramas
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.watermarker import Watermarker


@pytest.fixture(scope="session")
def key():
    return Key(bytes(range(16)))


@pytest.fixture(scope="session")
def small():
    """400 x 200 pixels, the smallest that can be marked."""
    return attacks.resize(panoramas(["venice"])["venice"], 200 / 256)


@pytest.fixture(scope="session")
def small_marked(small, key):
    """The same with the payload b"hello"."""
    return Watermarker(key, band="low").embed(small, b"hello")
