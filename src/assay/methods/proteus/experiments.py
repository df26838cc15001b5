"""What the trials of the study measure. Hessians and encoded models are made once and cached on the disk."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.cache import cached
from assay.methods.proteus import baselines, kernels
from assay.methods.proteus.calibration import calibration_tokens, held_out_tokens
from assay.methods.proteus.codes import CODES, Code, lloyd_max, mulbal
from assay.methods.proteus.compensation import proxy_error
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.decoder import linear_weight
from assay.methods.proteus.distillation import TuningSettings, distill_model
from assay.methods.proteus.evaluation import compare
from assay.methods.proteus.hessian import walk_blocks
from assay.methods.proteus.incoherence import padded
from assay.methods.proteus.instantiate import Choice, Sample, choose
from assay.methods.proteus.integration import replace_module
from assay.methods.proteus.layer_quantization import (
    LayerSettings,
    QuantizedLayer,
    dequantize,
    prepare_inputs,
    quantize_layer,
)
from assay.methods.proteus.linear import ProteusLinear
from assay.methods.proteus.pool import pool
from assay.methods.proteus.study import LAYERS
from assay.methods.proteus.table_decoder import TableDecoder
from assay.methods.proteus.trellis import Trellis
from assay.methods.proteus.vetting import draw, gaussian_tiles, squared_errors, vet_generator
from assay.methods.proteus.viterbi import encode_tiles
from assay.study import Trial

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Measured = dict[str, float]
BITS = 2
# The names of arms that are codes of other methods.
PEERS = {"1mad": "1mad", "3inst": "3inst", "mcg": "mcg", "mul1": "mul1", "hyb": "hyb", "table": "gaussian"}

# Sequences of 256 weights that a code is measured on: fewer where encoding takes long.
_MEASURED_TILES = {16: 64}
_SAMPLED_TILES = {16: 16}
# Seeds of the data on which a code's scale is chosen, apart from those it is measured on.
_SAMPLE_SEED = 10_000
RANDOM_GENERATORS = 40

CALIBRATION_SEQUENCES, HELD_OUT_SEQUENCES, SEQUENCE_LENGTH, CALIBRATION_SEED = 24, 12, 384, 0
TEXTS = ("python-docs", "shakespeare", "kjv")
EVALUATION_WINDOWS, EVALUATION_LENGTH = 6, 256
DISTILLATION = TuningSettings(learning_rate=3e-4, epochs=2, batch=2)
DISTILLATION_SEQUENCES, DISTILLATION_LENGTH = 24, 128


# ------------------------------------------------------------------------------------------------- codes


def gaussian(trial: Trial) -> Measured:
    """Mean squared error on a Gaussian source, with the scale, and the generator, chosen on other data."""
    window = int(trial.setting["window"])
    tiles = gaussian_tiles(_MEASURED_TILES.get(window, 256), trial.seed)
    sampled = gaussian_tiles(_SAMPLED_TILES.get(window, 64), _SAMPLE_SEED + trial.seed)
    if trial.arm == "lloyd-max":
        levels = lloyd_max(BITS).float()
        nearest = levels[torch.bucketize(tiles, (levels[1:] + levels[:-1]) / 2)]
        return {"mse": float((nearest - tiles).double().square().mean())}
    codes = _codes(trial.arm, window)
    sample = Sample(sampled, torch.ones_like(sampled))
    trellis = codes[0].trellis(BITS)
    best = choose(sample, [code.values for code in codes], trellis, encode_tiles)[0]
    return {"mse": _affine_error(tiles, codes[best.candidate], best, trellis)}


def _codes(arm: str, window: int) -> list[Code]:
    if arm == "proteus":
        return [mulbal(generator, window) for generator in pool(window, BITS)]
    return [CODES[PEERS[arm]](window)]


def _affine_error(tiles: Float[Tensor, "n 256"], code: Code, choice: Choice, trellis: Trellis) -> float:
    states = encode_tiles(tiles, choice.scale * code.values, trellis)
    decoded = code.values[states.long()].reshape(tiles.shape).double()
    return float((tiles - choice.gain * decoded - choice.offset).square().mean())


def vetting(trial: Trial) -> Measured:
    """How a score of random generators ranks their errors, or the tail of the errors."""
    window = int(trial.setting["window"])
    if trial.arm == "pool":
        tiles = gaussian_tiles(64, trial.seed)
        errors = [
            float(squared_errors(mulbal(one, window), BITS, tiles).mean()) for one in pool(window, BITS)
        ]
        return {"tail": max(errors)}
    scores, errors = _random_generators(window, trial.seed)
    if trial.arm == "random":
        return {"tail": float(np.quantile(errors, 0.9)), "median": float(np.median(errors))}
    from scipy.stats import spearmanr

    score = np.array([row[trial.arm] for row in scores])
    correlation, _ = spearmanr(score, errors)
    measured = {"spearman": float(correlation)}  # pyright: ignore[reportArgumentType]
    # The points of the figure.
    for index, (x, y) in enumerate(zip(score, errors, strict=True)):
        measured |= {f"score:{index}": float(x), f"mse:{index}": float(y)}
    return measured


def _random_generators(window: int, seed: int) -> tuple[list[dict[str, float]], list[float]]:
    """Scores and errors of random generators; larger scores are worse ones."""

    def build(folder: Path) -> None:
        tiles = gaussian_tiles(64, seed)
        scores, errors = [], []
        for generator in draw(RANDOM_GENERATORS, seed, mixing=True):
            found = vet_generator(generator, window, BITS)
            scores.append(
                {
                    "branch-coverage": found.branch_coverage,
                    "pair-chi-square": found.pair_coverage,
                    "overlap-correlation": found.overlap_correlation,
                    "kurtosis": abs(found.excess_kurtosis),
                    "wasserstein": found.wasserstein,
                }
            )
            errors.append(float(squared_errors(mulbal(generator, window), BITS, tiles).mean()))
        (folder / "generators.json").write_text(json.dumps([scores, errors]))

    key = {"window": window, "seed": seed, "count": RANDOM_GENERATORS, "version": 1}
    scores, errors = json.loads((cached("proteus-generators", key, build) / "generators.json").read_text())
    return scores, errors


def marginal(trial: Trial) -> Measured:
    """How near the values of one generator of the pool are to a Gaussian."""
    window = int(trial.setting["window"])
    found = vet_generator(pool(window, BITS)[int(trial.setting["candidate"])], window, BITS)
    return {"wasserstein": found.wasserstein, "excess_kurtosis": found.excess_kurtosis}


# ------------------------------------------------------------------------------------------------ layers


def layer(trial: Trial) -> Measured:
    """One layer, quantized with the Hessian of calibration text and judged with that of other text."""
    source, name, window = (str(trial.setting[key]) for key in ("model", "layer", "window"))
    model, _ = _original(source)
    weight = linear_weight(model.get_submodule(name)).detach().float()
    settings = LayerSettings(bits=BITS, window=int(window), seed=trial.seed)
    hessian, group = hessians(source, "calibration")[name]
    quantized, bits = _quantized(trial.arm, weight, hessian, name, group, settings)
    measured = {
        "error": proxy_error(weight, quantized, hessian),
        "held_out_error": proxy_error(weight, quantized, hessians(source, "held-out")[name][0]),
        "bits_per_weight": bits,
    }
    if trial.arm == "proteus":
        packed = [
            quantize_layer(
                weight, hessian, name=name, group=group, settings=replace(settings, compensate=compensate)
            )[0].qweight
            for compensate in (True, False)
        ]
        measured["bytes_changed"] = float((packed[0] != packed[1]).sum())
    return measured


def _quantized(
    arm: str, weight: Tensor, hessian: Tensor, name: str, group: str, settings: LayerSettings
) -> tuple[Float[Tensor, "m n"], float]:
    """The dense weight that an arm makes of a layer, and the bits a weight that it stores."""
    if arm == "rtn":
        return baselines.rtn(weight)
    if arm == "gptq":
        return baselines.gptq(weight, hessian, damp=settings.damp)
    if arm == "ldlq-scalar":
        return baselines.ldlq_scalar(weight, hessian, name=name, group=group, settings=settings)
    if arm in PEERS:
        code = CODES[PEERS[arm]](settings.window)
        return baselines.ldlq_code(weight, hessian, code, name=name, group=group, settings=settings)
    packed = _packed(arm, weight, hessian, name, group, settings)
    return dequantize(packed, settings.window, BITS), packed.bits_per_weight


def _packed(
    arm: str, weight: Tensor, hessian: Tensor, name: str, group: str, settings: LayerSettings
) -> QuantizedLayer:
    if arm == "proteus-single":
        settings = replace(settings, pool=pool(settings.window, BITS)[:1])
    settings = replace(settings, compensate=arm in ("proteus", "proteus-compensated"))
    return quantize_layer(weight, hessian, name=name, group=group, settings=settings)[0]


def hessians(source: str, part: str) -> Mapping[str, tuple[Float[Tensor, "n n"], str]]:
    """The second moment of the inputs of every layer, float32, and the name of those that share it."""
    return _hessians(source, part)


@cache
def _hessians(source: str, part: str) -> dict[str, tuple[Tensor, str]]:
    from safetensors.torch import load_file, save_file

    def build(folder: Path) -> None:
        model, tokenizer = _original(source)
        if part == "calibration":
            tokens = calibration_tokens(
                model, tokenizer, TEXTS, CALIBRATION_SEQUENCES, SEQUENCE_LENGTH, seed=CALIBRATION_SEED
            )
        else:
            tokens = held_out_tokens(model, tokenizer, TEXTS, HELD_OUT_SEQUENCES, SEQUENCE_LENGTH)
        stored: dict[str, Tensor] = {}
        groups: dict[str, str] = {}
        for block in walk_blocks(model, tokens.split(4), propagate="original"):
            for name, moment in block.moments.items():
                # Held-out moments are needed for the layers of the comparison only.
                if part == "calibration" or name in LAYERS:
                    groups[name] = moment.group
                    stored[moment.group] = moment.hessian.float()
            block.advance()
        save_file(stored, folder / "moments.safetensors")
        (folder / "groups.json").write_text(json.dumps(groups))

    sequences = CALIBRATION_SEQUENCES if part == "calibration" else HELD_OUT_SEQUENCES
    key = {"part": part, "sequences": sequences, "layers": list(LAYERS), **_calibrated(source)}
    folder = cached("proteus-moments", key, build)
    stored = load_file(folder / "moments.safetensors")
    groups = json.loads((folder / "groups.json").read_text())
    return {name: (stored[group], group) for name, group in groups.items()}


# ------------------------------------------------------------------------------------------------ models


def _calibrated(source: str) -> dict[str, Any]:
    """What determines the Hessians, for keys of the cache; raise the version when something else does."""
    tokens = {"length": SEQUENCE_LENGTH, "sequences": CALIBRATION_SEQUENCES, "seed": CALIBRATION_SEED}
    return {"model": source, "texts": list(TEXTS), "calibration": tokens, "version": 1}


def model(trial: Trial) -> Measured:
    """All linear layers of the model quantized; nats a token and divergence on held-out text."""
    source, window = str(trial.setting["model"]), int(trial.setting["window"])
    original, tokenizer = _original(source)
    settings = LayerSettings(bits=BITS, window=window, seed=trial.seed)
    student, bits = original, 32.0
    if trial.arm in ("proteus", "proteus-compensated"):
        student, bits = _packed_model(source, settings), 0.0
        layers = [module for module in student.modules() if isinstance(module, ProteusLinear)]
        bits = _mean_bits([(one.bits_per_weight, one.in_features * one.out_features) for one in layers])
        if trial.arm == "proteus":
            amount = (DISTILLATION_SEQUENCES, DISTILLATION_LENGTH)
            tokens = calibration_tokens(original, tokenizer, TEXTS, *amount, seed=1 + trial.seed)
            distill_model(student, original, tokens, DISTILLATION, seed=trial.seed)
        _densify(student)
    elif trial.arm != "original":
        student, bits = _dense_model(source, trial.arm, settings)
    stretches = held_out_tokens(original, tokenizer, TEXTS, EVALUATION_WINDOWS, EVALUATION_LENGTH)
    found = compare(student, original, stretches)
    return {
        "nats": math.log(found.perplexity),
        "perplexity": found.perplexity,
        "kl": found.divergence or 0.0,
        "agreement": found.agreement or 0.0,
        "bits_per_weight": bits,
    }


def _dense_model(source: str, arm: str, settings: LayerSettings) -> tuple[PreTrainedModel, float]:
    """A copy of the model with every linear layer replaced by what an arm makes of it, decoded."""
    student = _copy(source)
    bits = []
    for name, (hessian, group) in hessians(source, "calibration").items():
        weight = linear_weight(student.get_submodule(name))
        dense, stored = _quantized(arm, weight.detach().float(), hessian, name, group, settings)
        with torch.no_grad():
            weight.copy_(dense)
        bits.append((stored, dense.numel()))
    return student, _mean_bits(bits)


def _packed_model(source: str, settings: LayerSettings) -> PreTrainedModel:
    """A copy of the model with packed, compensated layers; encoded once, then cached."""
    from safetensors.torch import load_file, save_file

    config = ProteusConfig(bits=BITS, window=settings.window)

    def build(folder: Path) -> None:
        original, _ = _original(source)
        prepared: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name, (hessian, group) in hessians(source, "calibration").items():
            if group not in prepared:
                # Only the layers of one group share inputs, and they follow each other.
                prepared = {group: prepare_inputs(hessian, group=group, settings=settings)}
            weight = linear_weight(original.get_submodule(name))
            packed, _ = quantize_layer(weight, prepared[group], name=name, group=group, settings=settings)
            module = ProteusLinear.from_layer(packed, config)
            tensors |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        save_file(tensors, folder / "layers.safetensors")

    key = {"settings": dataclasses.asdict(settings), **_calibrated(source)}
    tensors = load_file(cached("proteus-layers", key, build) / "layers.safetensors")
    student = _copy(source)
    for name in hessians(source, "calibration"):
        rows, columns = linear_weight(student.get_submodule(name)).shape
        types = (tensors[f"{name}.su"].dtype, tensors[f"{name}.sv"].dtype)
        module = ProteusLinear(columns, rows, bias=False, config=config, scale_types=types)
        module.load_state_dict(
            {
                key.removeprefix(f"{name}."): value
                for key, value in tensors.items()
                if key.startswith(f"{name}.")
            }
        )
        replace_module(student, name, module.eval())
    return student


def _densify(student: nn.Module) -> None:
    """Put decoded weights in the place of packed layers: the same function, faster for long sequences."""
    for name, module in list(student.named_modules()):
        if isinstance(module, ProteusLinear):
            replace_module(student, name, module.to_dense(torch.float32))


def _mean_bits(layers: list[tuple[float, int]]) -> float:
    return sum(bits * weights for bits, weights in layers) / sum(weights for _, weights in layers)


@cache
def _original(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from assay import lm

    return lm.load(source, dtype="float32")


def _copy(source: str) -> PreTrainedModel:
    import copy

    return copy.deepcopy(_original(source)[0])


# ------------------------------------------------------------------------------------- format and speed


def format_(trial: Trial) -> Measured:
    """Whether anything that is stored of a layer grows with the number of states."""
    generator = torch.Generator().manual_seed(trial.seed)
    weight = torch.randn(64, 64, generator=generator)
    sizes = []
    for window in (8, 12, 16):
        settings = LayerSettings(bits=BITS, window=window, seed=trial.seed)
        packed, _ = quantize_layer(weight, torch.eye(64), name="layer", settings=settings)
        stored = ProteusLinear.from_layer(packed, ProteusConfig(bits=BITS, window=window)).state_dict()
        sizes.append(sum(tensor.numel() * tensor.element_size() for tensor in stored.values()))
    return {"bytes_that_grow": float(max(sizes) - min(sizes))}


# (rows, columns) of the linear layers of a decoder block, how many blocks, and how often each occurs in one.
_SHAPES: dict[str, tuple[int, tuple[tuple[int, int, int], ...]]] = {
    "SmolLM2-135M": (30, ((576, 576, 2), (192, 576, 2), (1536, 576, 2), (576, 1536, 1))),
    "Llama-2-7b": (32, ((4096, 4096, 4), (11008, 4096, 2), (4096, 11008, 1))),
    "Llama-2-13b": (40, ((5120, 5120, 4), (13824, 5120, 2), (5120, 13824, 1))),
    "Llama-2-70b": (80, ((8192, 8192, 2), (1024, 8192, 2), (28672, 8192, 2), (8192, 28672, 1))),
}
# HYB keeps 2^9 pairs in half precision for a layer, and reads one pair for two weights.
_HYB_TABLE, _HYB_READ = 4 << 9, 2


def bytes_(trial: Trial) -> Measured:
    """Bytes that the linear layers of a model touch for one token, counted from the formats."""
    blocks, shapes = _SHAPES[str(trial.setting["model"])]
    packed = scales = weights = layers = 0
    for rows, columns, count in shapes:
        packed += count * padded(rows) * padded(columns) * BITS // 8
        scales += count * 2 * (rows + columns)
        weights += count * rows * columns
        layers += count
    # A generator's record (32 bytes) and two affine numbers are all that a layer has beside its scales.
    ours = blocks * (packed + scales + layers * 40)
    hyb = blocks * (packed + scales + layers * _HYB_TABLE)
    looked_up = blocks * weights * _HYB_READ
    return {
        "proteus_stored": float(ours),
        "proteus_looked_up": 0.0,
        "hyb_stored": float(hyb),
        "hyb_looked_up": float(looked_up),
        "bf16_stored": float(2 * blocks * weights),
        "bf16_looked_up": 0.0,
        "bytes_of_table_code": hyb / ours,
        "reads_of_table_code": (hyb + looked_up) / ours,
    }


# The clock ticks in nanoseconds; products of small layers take a few microseconds.
_TURNS = 60


def decode(trial: Trial) -> Measured:
    """How fast a product with one vector is beside peers, on one thread: the best of many turns of each."""
    rows, columns = map(int, str(trial.setting["shape"]).split("x"))
    window = int(trial.setting["window"])
    random = torch.Generator().manual_seed(rows + columns)
    qweight = torch.randint(0, 256, (rows // 16, columns // 16, 64), dtype=torch.uint8, generator=random)
    x, dense = torch.randn(1, columns, generator=random), torch.randn(rows, columns, generator=random)
    generator = pool(window, BITS)[0]
    record, table = generator.record(), generator.table(window).float()
    halves, half = dense.to(torch.bfloat16), x[0].to(torch.bfloat16)
    peer = TableDecoder()
    contestants: dict[str, Callable[[], Tensor]] = {
        "float": lambda: kernels.matvec(qweight, record, window, BITS, x),
        "int8": lambda: kernels.matvec(qweight, record, window, BITS, x, activations="int8"),
        "float32": lambda: torch.mv(dense, x[0]),
        "bfloat16": lambda: torch.mv(halves, half),
    }
    for way in peer.ways:
        contestants[f"table {way}"] = lambda way=way: peer.matvec(qweight, window, table, x[0], way)
    best = dict.fromkeys(contestants, math.inf)
    for _ in range(_TURNS):
        for name, action in contestants.items():
            # The first call brings what this contestant reads into the caches; the second counts.
            action()
            start = time.thread_time()
            action()
            best[name] = min(best[name], time.thread_time() - start)
    table_time = min((best[name] for name in best if name.startswith("table")), default=math.nan)
    return {
        "speed_of_table": table_time / best["float"],
        "int8_speed_of_table": table_time / best["int8"],
        "speed_of_float32": best["float32"] / best["float"],
        "speed_of_bfloat16": best["bfloat16"] / best["float"],
    }


PARTS: dict[str, Callable[[Trial], Measured]] = {
    "gaussian": gaussian,
    "vetting": vetting,
    "marginal": marginal,
    "layer": layer,
    "model": model,
    "format": format_,
    "bytes": bytes_,
    "decode": decode,
}
