"""Measuring on data how much one training row matters: many random swaps, kept on disk as they come."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from assay.errors import InputError
from assay.files import replacing
from assay.methods.lp_stability.losses import Loss
from assay.methods.lp_stability.replace_one import Perturbable, Perturbed

Scheme = Literal["replace", "loo"]
# Pairs between two savings of a partial result.
SAVE_EVERY = 20
# More failures than this share and what is left is no random sample of the swaps.
MOST_FAILURES = 0.05


@dataclass(frozen=True)
class SwapEffects:
    """What each of K swaps changed; entries of swaps whose fit failed are NaN.

    Attributes:
        largest: max over the evaluation rows of |change of the loss|.
        risk: change of the mean loss on the evaluation rows.
        gap: change of that mean minus the mean loss on the training rows.
        own: loss of the changed fit at the row that left, minus that of the original fit there: its mean over
            swaps is E[risk - training risk].
    """

    largest: Float[np.ndarray, " K"]
    risk: Float[np.ndarray, " K"]
    gap: Float[np.ndarray, " K"]
    own: Float[np.ndarray, " K"]

    @property
    def failed(self) -> Bool[np.ndarray, " K"]:
        """Whose fit failed."""
        return np.isnan(self.largest)

    def finished(self) -> SwapEffects:
        """Without the failures."""
        kept = ~self.failed
        return SwapEffects(self.largest[kept], self.risk[kept], self.gap[kept], self.own[kept])


def measure_swaps(
    fits: Perturbable,
    train: tuple[Float[np.ndarray, "m d"], Float[np.ndarray, " m"]],
    reserve: tuple[Float[np.ndarray, "E d"], Float[np.ndarray, " E"]],
    loss: Loss,
    *,
    n_pairs: int,
    scheme: Scheme = "replace",
    seed: int = 0,
    checkpoint: tuple[Path, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SwapEffects:
    """Swap `n_pairs` random training rows for rows of the reserve (or leave them out) and record what
    changes.

    Pair k depends on `(seed, k)` alone, so that an interrupted measurement goes on where it stopped and a
    longer one begins with a shorter one.

    Args:
        fits: a fit to the training rows whose points are the training rows and then the reserve.
        reserve: rows from the same law that no fit saw; the new rows and the evaluation rows come from it. A
            new row is left out of the means over evaluation rows for its own swap.
        scheme: `"replace"`, or `"loo"` for leaving out; the two differ by a factor of up to two.
        checkpoint: a file for partial results, written every 20 pairs, and a fingerprint of everything that
            determines them.
        progress: called with the pairs done and the pairs wanted.

    Raises:
        InputError: more than 5 % of the fits failed, or the checkpoint belongs to another measurement.
    """
    if scheme == "loo":
        if len(train[1]) < 2:
            raise InputError(f"leaving one out needs at least 2 training rows, there are {len(train[1])}")
        n_pairs = min(n_pairs, len(train[1]))
    done = np.empty((0, 4))
    if checkpoint is not None:
        done = _read_partial(*checkpoint)[:n_pairs]
    while len(done) < n_pairs:
        part = np.arange(len(done), min(len(done) + SAVE_EVERY, n_pairs))
        done = np.vstack(
            [done, _effects(fits, train, reserve, loss, _pairs(part, train, reserve, scheme, seed))]
        )
        if checkpoint is not None:
            _write_partial(*checkpoint, done)
        if progress is not None:
            progress(len(done), n_pairs)
    effects = SwapEffects(*np.ascontiguousarray(done.T))
    if effects.failed.sum() > MOST_FAILURES * n_pairs:
        raise InputError(
            f"{effects.failed.sum()} of {n_pairs} fits to a changed sample failed (at most "
            f"{MOST_FAILURES:.0%} may): the estimator must fit every sample of this size"
        )
    return effects


def fingerprint(*parts: Any) -> str:
    """SHA-256 of arrays and texts, the same in every process."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def describe(estimator: Any, loss: Loss, labels: Float[np.ndarray, " m"]) -> list[Any]:
    """What identifies a learner and a loss in a fingerprint, the same in every process.

    Two losses of a user may share a name, so their values at the labels stand for them.
    """
    parameters = {
        name: getattr(value, "__qualname__", str(value)) for name, value in estimator.get_params().items()
    }
    return [type(estimator).__qualname__, parameters, loss.name, loss(labels, np.zeros(len(labels)))]


def _pairs(
    numbers: Int[np.ndarray, " k"], train: tuple, reserve: tuple, scheme: Scheme, seed: int
) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"] | None]:
    """The training rows that leave and the reserve rows that enter (None for leaving out)."""
    m, n_reserve = len(train[1]), len(reserve[1])
    if scheme == "loo":
        return np.random.default_rng(seed).permutation(m)[numbers], None
    drawn = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(k),))).integers((m, n_reserve))
        for k in numbers
    ]
    leaving, entering = np.array(drawn).T
    return leaving, entering


def _effects(
    fits: Perturbable,
    train: tuple[np.ndarray, np.ndarray],
    reserve: tuple[np.ndarray, np.ndarray],
    loss: Loss,
    pairs: tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"] | None],
) -> Float[np.ndarray, "k 4"]:
    leaving, entering = pairs
    (_, y), (X_reserve, y_reserve) = train, reserve
    m, k = len(y), np.arange(len(leaving))
    outside = np.ones((len(k), len(y_reserve)), dtype=bool)
    if entering is None:
        changed: Perturbed = fits.leave_out(leaving)
    else:
        changed = fits.replace(leaving, X_reserve[entering], y_reserve[entering])
        if len(y_reserve) > 1:
            outside[k, entering] = False
    before = fits.predictions
    # Where a fit failed the original predictions stand in; what comes of them is dropped below.
    after = np.where(changed.failed[:, None], before, changed.at_points)
    change = loss(y_reserve, after[:, m:]) - loss(y_reserve, before[m:])
    risk = (change * outside).sum(1) / outside.sum(1)
    old, new = loss(y, before[:m]), loss(y, after[:, :m])
    own = new[k, leaving] - old[leaving]
    total = new.sum(1) - new[k, leaving]
    if entering is None:
        training = total / (m - 1)
    else:
        at_new = np.where(changed.failed, y_reserve[entering], changed.at_new)
        training = (total + loss(y_reserve[entering], at_new)) / m
    # The risk itself is estimated on the same rows before and after, so that only its change enters.
    values = np.stack([np.abs(change).max(1), risk, risk - (training - old.mean()), own], axis=1)
    values[changed.failed] = np.nan
    return values


def _write_partial(path: Path, mark: str, done: Float[np.ndarray, "k 4"]) -> None:
    with replacing(path) as temporary:
        np.savez(temporary, effects=done, fingerprint=np.array(mark))


def _read_partial(path: Path, mark: str) -> Float[np.ndarray, "k 4"]:
    if not path.exists():
        return np.empty((0, 4))
    try:
        with np.load(path, allow_pickle=False) as content:
            found, done = str(content["fingerprint"]), np.asarray(content["effects"], dtype=float)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a partial estimate ({error}): remove it to start again") from None
    if found != mark or done.ndim != 2 or done.shape[1] != 4:
        raise InputError(
            f"{path} belongs to another estimate (other data, model, loss or seed): remove it, or name "
            "another file"
        )
    return done
