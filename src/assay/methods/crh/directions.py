"""Ways to find the direction of a concept from activations without and with it.

"Mean-centring" (the mean with the concept minus the mean over all) is not among them: on complete pairs it is
half the mean difference and hence the same direction.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError

# Below this share of the mean length of a difference, a mean difference is rounding.
ZERO = 1e-10


def mean_difference(
    present: Float[Tensor, "n width"], absent: Float[Tensor, "m width"]
) -> Float[Tensor, " width"]:
    """The difference of the means, not normalised. The two need not be paired.

    Raises:
        InputError: the means are the same.
    """
    mean = present.double().mean(dim=0) - absent.double().mean(dim=0)
    scale = float(present.double().norm(dim=1).mean() + absent.double().norm(dim=1).mean())
    if float(mean.norm()) <= ZERO * max(scale, 1e-300):
        raise InputError(
            "the mean difference has length zero: the responses with and without the concept do not differ "
            "on average, so there is no axis"
        )
    return mean


def principal_direction(differences: Float[Tensor, "n width"]) -> Float[Tensor, " width"]:
    """The first right-singular vector of the raw differences, on the side of their mean.

    The paper's code leaves the sign to chance; here it is the sign of the mean difference.
    """
    rows = differences.double()
    _, basis = singular_basis(rows)
    return _oriented(basis[0], rows.mean(dim=0))


def probe_direction(
    present: Float[Tensor, "n width"],
    absent: Float[Tensor, "m width"],
    *,
    steps: int = 200,
    rate: float = 0.1,
) -> Float[Tensor, " width"]:
    """The weight of a logistic probe, of unit length, on the side of the mean difference.

    One linear layer with a bias, binary cross-entropy, Adam on the full batch from zero (the paper's code).

    Args:
        steps: of Adam.
        rate: its learning rate.
    """
    inputs = torch.cat([present, absent]).double()
    targets = torch.cat([torch.ones(len(present)), torch.zeros(len(absent))]).double()
    weight = torch.zeros(inputs.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=rate)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(inputs @ weight + bias, targets)
            loss.backward()
            optimizer.step()
    found = weight.detach()
    if float(found.norm()) == 0:
        raise InputError("the probe found no difference between the responses, so there is no axis")
    return _oriented(found / found.norm(), present.double().mean(dim=0) - absent.double().mean(dim=0))


def random_direction(width: int, seed: int) -> Float[Tensor, " width"]:
    """A unit vector drawn uniformly from the sphere, float64."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, generator=generator, dtype=torch.float64)
    return drawn / drawn.norm()


def singular_basis(
    rows: Float[Tensor, "n width"], tolerance: float = 1e-7
) -> tuple[Float[Tensor, " rank"], Float[Tensor, "rank width"]]:
    """Singular values and right-singular vectors, for few rows of great width.

    A QR decomposition reduces the problem to n x n without squaring its condition, as a Gram matrix would.

    Args:
        tolerance: values below this share of the largest count as zero.
    """
    orthonormal, triangle = torch.linalg.qr(rows.double().T)
    left, values, _ = torch.linalg.svd(triangle)
    rank = int((values > tolerance * values[:1].clamp(min=1e-300)).sum()) if len(values) else 0
    basis = (orthonormal @ left[:, :rank]).T
    # The sign of a singular vector is arbitrary: the largest entry is made positive.
    largest = basis.gather(1, basis.abs().argmax(dim=1, keepdim=True)) if rank else basis[:, :1]
    return values[:rank], basis * torch.where(largest < 0, -1.0, 1.0)


def held_out_rank(rows: Float[Tensor, "n width"], largest: int, *, folds: int = 5, seed: int = 0) -> int:
    """The rank whose probabilistic principal components give held-out rows the highest likelihood.

    Rows are modelled as `N(0, sum_j lambda_j v_j v_j' + sigma^2 I)` (Tipping and Bishop, JRSS B 61, 1999).
    Unlike held-out reconstruction, which improves with every component, this has an optimum.

    Args:
        rows: residuals, one a row; they are not centred.
        largest: the highest rank to consider.
        folds: of cross-validation; at most n.
        seed: of the folds.

    Returns:
        From 0 (isotropic) to `largest`.
    """
    n, width = rows.shape
    folds = min(folds, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    parts = [order[fold::folds] for fold in range(folds)]
    # A fit must leave some variance to the isotropic part, so it has at most n - 2 components.
    top = min(largest, n - max(map(len, parts)) - 2)
    if top < 1 or float(rows.norm()) == 0:
        return 0
    scores = torch.zeros(top + 1, dtype=torch.float64)
    for part in parts:
        kept = torch.ones(n, dtype=torch.bool)
        kept[part] = False
        scores += _likelihoods(rows[kept].double(), rows[part].double(), top, width)
    return int(scores.argmax())


def _likelihoods(
    fitted: Float[Tensor, "n width"], held_out: Float[Tensor, "m width"], top: int, width: int
) -> Float[Tensor, " ranks"]:
    """The summed log-likelihood of held-out rows for ranks 0 to `top`."""
    values, basis = singular_basis(fitted)
    variances = values.square() / len(fitted)
    total = float(fitted.square().sum()) / len(fitted)
    along = (held_out @ basis.T).square()
    whole = held_out.square().sum(dim=1)
    scores = torch.full((top + 1,), -math.inf, dtype=torch.float64)
    for rank in range(min(top, len(values)) + 1):
        # Rows that lie in a plane exactly leave only rounding; the floor keeps its likelihood finite.
        rest = max(total - float(variances[:rank].sum()), 1e-12 * total) / (width - rank)
        log_determinant = float(variances[:rank].log().sum()) + (width - rank) * math.log(rest)
        inside = (along[:, :rank] / variances[:rank]).sum(dim=1)
        outside = (whole - along[:, :rank].sum(dim=1)) / rest
        scores[rank] = -0.5 * float((log_determinant + inside + outside).sum())
    return scores


def _oriented(direction: Float[Tensor, " width"], side: Float[Tensor, " width"]) -> Float[Tensor, " width"]:
    return -direction if float(direction @ side) < 0 else direction
