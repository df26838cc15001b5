"""The learned engine: an encoder and a decoder that see only invariants, so no rotation has to be learnt.

The paper trains an equivariant encoder and an invariant decoder end to end; its architecture isn't public, so
this one is ours. The payload band is changed along keyed products of reference fields (the couplings of
`carriers`), degree by degree: d_l = sum over k of w_kl v_kl, where v_kl is the unit degree-l part of product
k. The weights w come from a network that sees the bits and invariants of the host; the decoder sees the
invariants <v_kl, a_l>. Both are exactly invariant, so rotations need not be among the training distortions.

Everything that training needs of an image are those invariants and the Gram matrices <v_kl, v_k'l>: training
never touches pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError
from assay.files import replacing_folder
from assay.methods.panorama_watermark.bch import Code, find_code
from assay.methods.panorama_watermark.carriers import carrier_grid, keyed_fields
from assay.methods.panorama_watermark.embedding import Marked, Strength
from assay.methods.panorama_watermark.harmonics import (
    analyse,
    band_coefficients,
    band_degrees,
    band_vector,
    image_grid,
    power_spectrum,
    synthesise,
)
from assay.methods.panorama_watermark.images import read_image
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.luma import PixelScale, luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.missing import fill_missing
from assay.methods.panorama_watermark.schedule import Band, Schedule, find_band, key_schedule

PRODUCTS = 24
WIDTH = 512


@dataclass(frozen=True)
class Host:
    """What the engine knows of an image.

    Args:
        directions: v_kl as (products, payload numbers): every degree's part has norm 1.
        values: <v_kl, a_l>, in units of `unit`, (products, degrees).
        spectrum: logarithms of the reference band's power in those units, (reference degrees).
        unit: the size of the coefficients at the top of the reference band, an invariant of the host.
    """

    directions: Float[np.ndarray, "products numbers"]
    values: Float[np.ndarray, "products degrees"]
    spectrum: Float[np.ndarray, " reference"]
    unit: float


def host_features(coefficients: np.ndarray, schedule: Schedule) -> Host:
    """The invariants of an image, and the directions that belong to them.

    Raises:
        InputError: the image has no directions to offer.
    """
    band, grid = schedule.band, carrier_grid(schedule.band)
    first, second = keyed_fields(coefficients, schedule, grid)
    (low, high), number = band.payload, np.arange(PRODUCTS)
    products = first[number % len(first)] * second[number // len(first)]
    directions = band_vector(analyse(products, grid, high), high, low, high)
    starts = np.concatenate([[0], np.cumsum(2 * np.arange(low, high) + 1)])
    norms = np.sqrt(np.add.reduceat(directions**2, starts, axis=1))
    # A product may have nothing in a degree (twice the reference's top less one, for half of all keys).
    inverse = np.where(norms > 1e-8 * norms.max(), 1.0, 0.0) / np.maximum(norms, 1e-300)
    directions *= inverse[:, band_degrees(low, high) - low]
    power = power_spectrum(coefficients, high) / (2 * np.arange(high + 1) + 1)
    bottom, top = band.reference
    unit = math.sqrt(power[(bottom + 3 * top) // 4 : top + 1].mean() + 1e-12)
    inner = np.add.reduceat(directions * band_vector(coefficients, high, low, high), starts, axis=1)
    spectrum = np.log(power[bottom : top + 1] / unit**2 + 1e-9)
    return Host(directions, inner / unit, spectrum, unit)


def _degree_grams(host: Host, band: Band) -> np.ndarray:
    """<v_kl, v_k'l> as (degrees, products, products)."""
    low, high = band.payload
    ends = np.cumsum(2 * np.arange(low, high + 1) + 1)
    return np.stack([part @ part.T for part in np.split(host.directions, ends[:-1], axis=1)])


class Encoder(nn.Module):
    """Bits and host invariants to the weights w_kl: a linear map of the bits, corrected for the host."""

    def __init__(self, bits: int, degrees: int, reference: int):
        super().__init__()
        self.degrees = degrees
        size = PRODUCTS * degrees
        self.spread = nn.Linear(bits, size, bias=False)
        self.correction = nn.Sequential(
            nn.Linear(bits + size + reference, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
            nn.Linear(WIDTH, size),
        )  # fmt: skip
        self.host = nn.Linear(size, size, bias=False)

    def forward(self, symbols: Tensor, values: Tensor, spectrum: Tensor) -> Tensor:
        flat = values.flatten(1)
        seen = torch.cat([symbols, torch.tanh(flat / 4), spectrum / 4], dim=1)
        weights = self.spread(symbols) + self.correction(seen) + self.host(flat)
        return weights.unflatten(1, (PRODUCTS, self.degrees))


class Decoder(nn.Module):
    """Invariants to logits: positive means the symbol +1."""

    def __init__(self, bits: int, degrees: int):
        super().__init__()
        size = PRODUCTS * degrees
        self.direct = nn.Linear(size, bits)
        self.network = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
            nn.Linear(WIDTH, bits),
        )  # fmt: skip

    def forward(self, values: Tensor) -> Tensor:
        flat = values.flatten(1)
        return self.direct(flat) + self.network(flat)


class LearnedEngine:
    """A trained encoder and decoder, for one key, band and code.

    Args:
        band: the band's name.
        code: the code's name.
        key_id: id of the key whose products it was trained on.
        seed: of the initial weights.
    """

    def __init__(self, band: str, code: str, key_id: str, *, seed: int = 0):
        self.band, self.code, self.key_id = find_band(band), find_code(code), key_id
        low, high = self.band.payload
        degrees, reference = high - low + 1, self.band.reference[1] - self.band.reference[0] + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = Encoder(self.code.n, degrees, reference)
            self.decoder = Decoder(self.code.n, degrees)
            # The decoder starts as the encoder's adjoint: plain spread spectrum, from which training goes on.
            with torch.no_grad():
                self.decoder.direct.weight.copy_(self.encoder.spread.weight.T * 0.1)

    def check_compatible(self, code: Code, band: Band | None, key: Key | None = None) -> None:
        """Refuse another code, band or key than it was trained for.

        Raises:
            InputError: one of them differs.
        """
        if code != self.code:
            raise InputError(f"the engine was trained for the code {self.code.name}, not {code.name}")
        if band is not None and band != self.band:
            raise InputError(f"the engine was trained for the band {self.band.name}, not {band.name}")
        if key is not None and key.id != self.key_id:
            raise InputError(f"the engine was trained for the key {self.key_id}, not {key.id}")

    def change(self, weights: Tensor, grams: Tensor, units: Tensor, ws_psnr: float) -> Tensor:
        """Scale weights so that the change has just the energy of a WS-PSNR; in units of the host."""
        energy = torch.einsum("bkl,blkj,bjl->b", weights, grams, weights)
        budget = 4 * math.pi * max(255.0**2 * 10 ** (-ws_psnr / 10) - 1 / 12, 1e-6)
        scale = torch.sqrt(budget / (energy + 1e-12)) / units
        return weights * scale[:, None, None]

    def embed_bits(
        self,
        image: np.ndarray,
        scale: PixelScale,
        schedule: Schedule,
        bits: np.ndarray,
        strength: Strength,
        *,
        valid: np.ndarray | None = None,
    ) -> Marked:
        """Write channel bits; as `embedding.embed_bits`. The smallest margin is that of the logits.

        Raises:
            InputError: the image has no directions to offer.
        """
        low, high = self.band.payload
        original = fill_missing(scale.luma(image), valid)
        host = host_features(luma_coefficients(original, high), schedule)
        signs = 1.0 - 2.0 * (np.asarray(bits) ^ schedule.whitening)
        self.encoder.eval()
        with torch.no_grad():
            weights = self.encoder(
                torch.tensor(signs, dtype=torch.float32)[None],
                torch.tensor(host.values, dtype=torch.float32)[None],
                torch.tensor(host.spectrum, dtype=torch.float32)[None],
            )
            grams = torch.tensor(_degree_grams(host, self.band), dtype=torch.float32)[None]
            weights = self.change(weights, grams, torch.tensor([host.unit]), strength.psnr)
        step = weights[0].numpy().astype(float) * host.unit
        vector = (step[:, band_degrees(low, high) - low] * host.directions).sum(axis=0)
        drawn = synthesise(band_coefficients(vector, high, low, high), image_grid(image.shape[0]), high)
        marked = scale.add(image, drawn, valid)
        again = luma_coefficients(fill_missing(scale.luma(marked), valid), high)
        reached = float((self.soft_values(again, schedule) * signs).min())
        return Marked(marked, 0.0, reached, 0, 1)

    def soft_values(self, coefficients: np.ndarray, schedule: Schedule) -> Float[np.ndarray, " bits"]:
        """The decoder's logits of an image."""
        host = host_features(coefficients, schedule)
        self.decoder.eval()
        with torch.no_grad():
            values = torch.tensor(host.values, dtype=torch.float32)[None]
            return self.decoder(values)[0].numpy().astype(float)

    def save(self, folder: Path | str) -> None:
        """Write the engine to a folder (safetensors and JSON). The key isn't in it."""
        from safetensors.torch import save_file

        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        tensors |= {f"decoder.{name}": value for name, value in self.decoder.state_dict().items()}
        config = {"band": self.band.name, "code": self.code.name, "key_id": self.key_id, "version": 1}
        with replacing_folder(folder) as target:
            save_file(
                {name: value.contiguous() for name, value in tensors.items()}, target / "engine.safetensors"
            )
            (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> LearnedEngine:
        """Read an engine that `save` wrote.

        Raises:
            InputError: the folder isn't one, or its tensors don't fit.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
            engine = cls(config["band"], config["code"], config["key_id"])
            tensors = load_file(folder / "engine.safetensors")
            for part, module in (("encoder.", engine.encoder), ("decoder.", engine.decoder)):
                own = {name.removeprefix(part): v for name, v in tensors.items() if name.startswith(part)}
                module.load_state_dict(own)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{folder} is not an engine that `train` saved: {reason}") from None
        return engine


def training_hosts(
    sources: Sequence[Path | np.ndarray], key: Key, band: Band, bits: int, *, keys: int = 4
) -> dict[str, Tensor]:
    """Invariants and Gram matrices of images, under the key and `keys` - 1 others.

    Products under another key are as good a host as those under the key itself: their statistics are the
    same, and an image gives several hosts.

    Raises:
        InputError: an image cannot be read, or has no directions to offer.
    """
    others = [key] + [Key(key.derive(f"training host {number}")) for number in range(keys - 1)]
    schedules = [key_schedule(other, band, bits) for other in others]
    hosts = []
    for source in sources:
        shown, hdr = None, False
        if isinstance(source, np.ndarray):
            pixels = source
        else:
            picture = read_image(source)
            pixels, shown, hdr = picture.pixels, picture.shown, picture.hdr
        luma = fill_missing(pixel_scale(pixels, hdr=hdr).luma(pixels), shown)
        coefficients = luma_coefficients(luma, band.lmax)
        for schedule in schedules:
            host = host_features(coefficients, schedule)
            hosts.append((host.values, host.spectrum, host.unit, _degree_grams(host, band)))
    values, spectrum, unit, grams = (np.array(part, dtype=np.float32) for part in zip(*hosts, strict=True))
    parts = {"values": values, "spectrum": spectrum, "unit": unit, "grams": grams}
    return {name: torch.from_numpy(part) for name, part in parts.items()}


def _distort(values: Tensor, grams: Tensor, units: Tensor, generator: torch.Generator) -> Tensor:
    """Noise in coefficients, a gain, and degrees that are lost; no rotations.

    Noise of deviation s in every coefficient has the covariance s^2 <v_k, v_k'> in the invariants of a
    degree; its deviation is uniform from 0 to 0.1 grey levels and grows towards high degrees, like that of
    JPEG.
    """
    batch, products, degrees = values.shape
    device = values.device
    jitter = 1e-4 * torch.eye(products, device=device)
    root = torch.linalg.cholesky(grams + jitter)
    white = torch.randn(batch, degrees, products, generator=generator).to(device)
    ramp = torch.linspace(0.5, 1.5, degrees, device=device)
    deviation = 0.1 * torch.rand(batch, 1, 1, generator=generator).to(device) * ramp
    noise = torch.einsum("blkj,blj->bkl", root, white) * deviation / units[:, None, None]
    kept = (torch.rand(batch, 1, degrees, generator=generator) > 0.05).to(values)
    gain = torch.exp(0.1 * torch.randn(batch, 1, 1, generator=generator)).to(device)
    return (values + noise) * kept * gain


def train_engine(
    sources: Sequence[Path | np.ndarray],
    key: Key,
    *,
    code: str = "bch127_64",
    band: str = "mid",
    steps: int = 3000,
    batch: int = 16,
    ws_psnr: float = 42.0,
    device: str = "cpu",
    seed: int = 0,
    on_step: Callable[[], Any] = lambda: None,
) -> tuple[LearnedEngine, list[dict[str, float]]]:
    """Train an engine: cross-entropy of the bits at a fixed WS-PSNR, Adam from 1e-3 to 1e-4 on a cosine.

    Args:
        sources: panoramas, as files or arrays.
        key: the key whose products carry the mark.
        code: decides the number of bits.
        band: the band's name.
        steps: optimiser steps.
        batch: hosts a step.
        ws_psnr: every host is marked at just this fidelity, in dB.
        device: a torch device.
        seed: of weights, bits and distortions.
        on_step: called after every step.

    Returns:
        The engine, and loss and bit accuracy at every tenth of the training.

    Raises:
        InputError: a parameter is out of range, or an image cannot be used.
    """
    if steps < 1 or batch < 1:
        raise InputError(f"steps and batch must be positive, got {steps} and {batch}")
    engine = LearnedEngine(band, code, key.id, seed=seed)
    hosts = training_hosts(sources, key, engine.band, engine.code.n)
    hosts = {name: value.to(device) for name, value in hosts.items()}
    parameters = [*engine.encoder.to(device).parameters(), *engine.decoder.to(device).parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=1e-4)
    generator = torch.Generator().manual_seed(seed)
    history: list[dict[str, float]] = []
    for step in range(steps):
        chosen = torch.randint(len(hosts["values"]), (batch,), generator=generator).to(device)
        values, grams, units = (hosts[name][chosen] for name in ("values", "grams", "unit"))
        bits = torch.randint(2, (batch, engine.code.n), generator=generator).to(device, torch.float32)
        weights = engine.encoder(2 * bits - 1, values, hosts["spectrum"][chosen])
        weights = engine.change(weights, grams, units, ws_psnr)
        marked = values + torch.einsum("blkj,bjl->bkl", grams, weights)
        logits = engine.decoder(_distort(marked, grams, units, generator))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, bits)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        on_step()
        if (step + 1) % max(1, steps // 10) == 0 or step + 1 == steps:
            accuracy = ((logits > 0) == (bits > 0.5)).float().mean().item()
            history.append({"step": step + 1, "loss": loss.item(), "bit_accuracy": accuracy})
    engine.encoder.cpu()
    engine.decoder.cpu()
    return engine, history
