import numpy as np
import pytest


@pytest.fixture
def heavy_rows():
    """Rows with ||x|| <= 1 and t_5 noise: y = w.x + 0.5 t_5 with ||w|| = 1."""

    def draw(n, seed=0, d=5):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, d))
        X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
        return X, X.sum(1) / np.sqrt(d) + 0.5 * rng.standard_t(5, size=n)

    return draw
