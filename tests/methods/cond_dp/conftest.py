"""Data that several tests of Cond-DP use."""

import numpy as np
import pytest


def rotated_spectrum(seed, n=10_000, d=50):
    """Features with singular values j^-1.5 in rotated coordinates; labels of variance 1, signal 0.8."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.normal(size=(d, d)))
    s = np.arange(1, d + 1) ** -1.5
    X = (rng.normal(size=(n, d)) * s) @ rotation.T
    signal = X @ rotation @ (rng.normal(size=d) / s)
    y = np.sqrt(0.8) * signal / signal.std() + np.sqrt(0.2) * rng.normal(size=n)
    return X, y


@pytest.fixture
def rotated():
    return rotated_spectrum
