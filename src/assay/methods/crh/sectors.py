"""Maps of sectors: the same push along the axis, turned around it, and what the margin makes of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.cache import content_hash
from assay.errors import InputError
from assay.files import replacing
from assay.methods.crh.cylinder import Cylinder
from assay.methods.crh.directions import random_direction
from assay.methods.crh.threshold import MarginFunction

# Harmonics cannot be told from noise with fewer sectors.
FEWEST_SECTORS = 3
# In mean differences.
DEFAULT_STRENGTHS = (0.4, 0.8, 1.2, 1.6, 2.4)


@dataclass(frozen=True)
class SectorMap:
    """Margins of one sample over sectors and strengths.

    Attributes:
        angles: phi of every sector, in radians, from the first vector of the frame.
        strengths: the lengths of the steering vectors.
        margins: in nats per token.
        axis_only: the margin of the axial part alone, `s cos(tilt) axis`.
        controls: the same maps in random planes, orthogonal to the axis.
        tilt: of the vectors from the axis, in radians.
        oracle: True where the frame needed the sample's own response with the concept.
    """

    angles: Float[np.ndarray, " sectors"]
    strengths: Float[np.ndarray, " strengths"]
    margins: Float[np.ndarray, "sectors strengths"]
    axis_only: Float[np.ndarray, " strengths"]
    controls: Float[np.ndarray, "planes sectors strengths"]
    tilt: float
    oracle: bool

    @property
    def profile(self) -> Float[np.ndarray, " sectors"]:
        """The mean over strengths."""
        return self.margins.mean(axis=1)

    def effects(self) -> SectorEffects:
        """How much the sector matters (see `SectorEffects`)."""
        profile, level = self.profile, float(self.axis_only.mean())
        spread = float(np.ptp(profile))
        turn = np.exp(-1j * self.angles)
        harmonic = complex(2 * np.mean((profile - profile.mean()) * turn))
        ranges = np.ptp(self.controls.mean(axis=2), axis=1)
        deviation = float(self.controls.mean(axis=2).std(axis=1).mean()) if len(self.controls) else math.nan
        return SectorEffects(
            range=spread,
            amplitude=abs(harmonic),
            # conj, because the sum above turns clockwise: the profile is highest near this angle.
            phase=math.atan2(-harmonic.imag, harmonic.real),
            best=float(self.angles[int(profile.argmax())]),
            worst=float(self.angles[int(profile.argmin())]),
            facilitating=float((profile > level).mean()),
            suppressing=float((profile < level).mean()),
            relative_range=spread / deviation if deviation > 0 else math.nan,
            control_range=float(ranges.mean()) if len(ranges) else math.nan,
            p_value=float((1 + (ranges >= spread).sum()) / (1 + len(ranges))) if len(ranges) else math.nan,
        )

    def onset(self) -> Float[np.ndarray, " sectors"]:
        """The strength at which each sector's margin first reaches zero; infinite where it never does."""
        found = np.full(len(self.angles), np.inf)
        for row, values in enumerate(self.margins):
            crossing = np.flatnonzero(values >= 0)
            if len(crossing) == 0:
                continue
            k = int(crossing[0])
            if k == 0:
                found[row] = self.strengths[0]
                continue
            below, above = values[k - 1], values[k]
            step = self.strengths[k] - self.strengths[k - 1]
            found[row] = self.strengths[k - 1] + step * below / (below - above)
        return found

    def save(self, path: Path | str) -> None:
        """Write an NPZ file."""
        with replacing(Path(path)) as temporary:
            np.savez(
                temporary,
                angles=self.angles,
                strengths=self.strengths,
                margins=self.margins,
                axis_only=self.axis_only,
                controls=self.controls,
                tilt=self.tilt,
                oracle=self.oracle,
            )

    @classmethod
    def load(cls, path: Path | str) -> SectorMap:
        """Read an NPZ file that `save` wrote.

        Raises:
            InputError: it is no such file.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(
                    arrays["angles"],
                    arrays["strengths"],
                    arrays["margins"],
                    arrays["axis_only"],
                    arrays["controls"],
                    float(arrays["tilt"]),
                    bool(arrays["oracle"]),
                )
        except (ValueError, KeyError, EOFError) as error:
            raise InputError(f"{path} holds no sector map: {error}") from None


@dataclass(frozen=True)
class SectorEffects:
    """The size of a sector effect.

    Attributes:
        range: highest minus lowest sector, of the profile over strengths, in nats per token.
        amplitude, phase: of the first harmonic of the profile; it is highest near `phase` (radians).
        best, worst: angles of the highest and lowest sector.
        facilitating, suppressing: shares of sectors above and below the axial part alone.
        relative_range: the range over the standard deviation between sectors of random planes.
        control_range: the mean range in random planes.
        p_value: that a random plane has as wide a range, by rank; at least 1 / (planes + 1).
    """

    range: float
    amplitude: float
    phase: float
    best: float
    worst: float
    facilitating: float
    suppressing: float
    relative_range: float
    control_range: float
    p_value: float


def sector_map(
    margin: MarginFunction,
    cylinder: Cylinder,
    i: int,
    *,
    n_phi: int = 8,
    strengths: Sequence[float] | None = None,
    tilt_deg: float = 60.0,
    difference: Float[Tensor, " width"] | None = None,
    n_controls: int = 2,
    seed: int = 0,
) -> SectorMap:
    """Turn a tilted vector around the axis and measure the margin of a sample.

    All cells of the map go to `margin` in one call, so a `ConceptMargin` computes their prefix once.

    Args:
        margin: a `ConceptMargin`, or any function of a sample and vectors that returns margins.
        cylinder: gives the axis and, without `difference`, the plane.
        i: the sample.
        n_phi: sectors; phi = 0 is the first direction of the frame.
        strengths: lengths of the vectors; 0.4, 0.8, 1.2, 1.6 and 2.4 mean differences by default.
        tilt_deg: between the vectors and the axis, between 0 and 90 degrees.
        difference: of the sample, to count sectors from its own normal; an oracle (see `Cylinder.frame`).
        n_controls: random planes.
        seed: of the random planes.

    Raises:
        InputError: an argument is out of range, or there is no plane (see `Cylinder.frame`).
    """
    if n_phi < FEWEST_SECTORS:
        raise InputError(f"a map needs at least {FEWEST_SECTORS} sectors, got {n_phi}")
    if not 0 < tilt_deg < 90:
        raise InputError(f"the tilt must be between 0 and 90 degrees, got {tilt_deg}")
    unit = cylinder.axis_norm
    lengths = [factor * unit for factor in DEFAULT_STRENGTHS] if strengths is None else list(strengths)
    if not lengths or min(lengths) <= 0 or sorted(lengths) != lengths:
        raise InputError(f"strengths must be positive and ascending, got {lengths}")
    if n_controls < 0:
        raise InputError(f"n_controls must be 0 or more, got {n_controls}")
    tilt = math.radians(tilt_deg)
    angles = torch.arange(n_phi, dtype=torch.float64) * (2 * math.pi / n_phi)
    frames = [cylinder.frame(difference)] + [
        _random_frame(cylinder, seed * 7919 + 2 * plane) for plane in range(n_controls)
    ]
    scale = torch.tensor(lengths, dtype=torch.float64)
    directions = torch.cat([cylinder.sector_directions(frame, tilt, angles) for frame in frames])
    cells = (directions.unsqueeze(1) * scale.view(1, -1, 1)).flatten(0, 1)
    axial = scale.unsqueeze(1) * math.cos(tilt) * cylinder.axis
    values = margin(i, torch.cat([axial, cells])).double().numpy()
    maps = values[len(lengths) :].reshape(1 + n_controls, n_phi, len(lengths))
    return SectorMap(
        angles.numpy(), scale.numpy(), maps[0], values[: len(lengths)], maps[1:], tilt, difference is not None
    )


def _random_frame(cylinder: Cylinder, seed: int) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
    """Two random orthonormal vectors orthogonal to the axis."""
    rows = torch.stack(
        [cylinder.axis, random_direction(cylinder.width, seed), random_direction(cylinder.width, seed + 1)]
    )
    orthonormal = torch.linalg.qr(rows.T)[0].T
    return orthonormal[1], orthonormal[2]


def sweep_sectors(
    margin: MarginFunction,
    cylinder: Cylinder,
    samples: Sequence[int],
    folder: Path | str,
    *,
    key: dict[str, Any],
    differences: Mapping[int, Float[Tensor, " width"]] | None = None,
    on_sample: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> dict[int, SectorMap]:
    """The maps of several samples, each kept in a file as soon as it is there.

    An interrupted sweep continues where it was: a file is written whole or not at all, and its name holds a
    hash of `key` and of the settings, so that maps of other settings are never taken for these.

    Args:
        margin, cylinder: see `sector_map`.
        samples: indices.
        folder: where the files are.
        key: what else determines the maps: model, pairs, template, position, ...
        differences: of the samples by index, for oracle frames.
        on_sample: called after every sample with the samples done and their number.
        options: further arguments of `sector_map`.
    """
    described = {
        name: list(value) if isinstance(value, (tuple, list)) else value for name, value in options.items()
    }
    geometry = torch.cat([cylinder.axis, cylinder.mean_diff, cylinder.basis.flatten(), cylinder.singular])
    digest = content_hash(
        {
            **key,
            **described,
            "cylinder": hashlib.sha256(geometry.numpy().tobytes()).hexdigest(),
            "layer": cylinder.layer,
            "oracle": differences is not None,
        }
    )
    found = {}
    for done, i in enumerate(samples, 1):
        path = Path(folder) / f"sample-{i}-{digest}.npz"
        if path.is_file():
            found[i] = SectorMap.load(path)
        else:
            difference = None if differences is None else differences[i]
            found[i] = sector_map(margin, cylinder, i, difference=difference, **options)
            found[i].save(path)
        on_sample(done, len(samples))
    return found
