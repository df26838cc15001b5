"""The study of proteus: a computed trellis code beside other codes, on a source, on layers and on models.

- `gaussian`: mean squared error of every code on a Gaussian source, at windows of 8 to 16 bits.
- `vetting`: what predicts the error of a random generator, and how bad the worst one is.
- `marginal`: how near the values of the pool's generators are to a Gaussian.
- `layer`: eight layers of SmolLM2-135M quantized by every method with the same Hessian of calibration text.
  The error is tr(E H E^T) / tr(W H W^T) with the Hessian H of text that was not calibrated on.
- `model`: all layers of SmolLM2-135M, all methods with the same Hessians; nats a token and divergence from
  the original model on held-out text.
- `format`, `bytes`, `decode`: what is stored, what is read for a token, and how fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from assay.methods.proteus.study_claims import CLAIMS, LAYER_WINDOW, MODEL_WINDOW
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

CODES = ("proteus", "1mad", "3inst", "mul1", "mcg", "hyb", "table", "lloyd-max")
SCORES = ("branch-coverage", "pair-chi-square", "overlap-correlation", "kurtosis", "wasserstein")
LAYERS = (
    "model.layers.3.self_attn.q_proj",
    "model.layers.3.self_attn.v_proj",
    "model.layers.3.mlp.down_proj",
    "model.layers.12.self_attn.o_proj",
    "model.layers.12.mlp.gate_proj",
    "model.layers.20.self_attn.k_proj",
    "model.layers.20.mlp.up_proj",
    "model.layers.27.self_attn.q_proj",
)
LAYER_ARMS = (
    "proteus",
    "proteus-plain",
    "proteus-single",
    "rtn",
    "gptq",
    "ldlq-scalar",
    "1mad",
    "3inst",
    "mul1",
    "mcg",
    "hyb",
    "table",
)
MODEL_ARMS = ("proteus", "proteus-compensated", "proteus-plain", "1mad", "ldlq-scalar", "gptq", "original")
# Rows and columns of the decode comparison: SmolLM2's and 4096-class layers.
SHAPES = ("576x576", "576x1536", "1536x576", "4096x4096", "4096x14336")
SIZES = ("SmolLM2-135M", "Llama-2-7b", "Llama-2-13b", "Llama-2-70b")


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Codes, layers and whole models; the longest trials first."""
    if scale == "smoke":
        for seed in range(seeds or 1):
            for arm in ("proteus", "1mad", "lloyd-max"):
                yield Trial(arm, {"part": "gaussian", "window": 6}, seed)
            yield Trial("proteus", {"part": "format"}, seed)
        return
    quick = scale == "quick"
    model = "embedded" if quick else "meta-llama/Llama-2-7b-hf"
    windows = {"model": MODEL_WINDOW, "layer": LAYER_WINDOW} if quick else {"model": 16, "layer": 16}
    for seed in range(seeds or 3):
        for arm in MODEL_ARMS:
            # Nothing about the original model is random.
            if seed == 0 or arm != "original":
                yield Trial(arm, {"part": "model", "model": model, "window": windows["model"]}, seed)
    for seed in range(seeds or 2):
        for layer in LAYERS:
            for arm in LAYER_ARMS:
                setting = {"part": "layer", "model": model, "layer": layer, "window": windows["layer"]}
                yield Trial(arm, setting, seed)
    for seed in range(seeds or 8):
        for window in (16, 14, 12, 10, 8):
            for arm in CODES:
                yield Trial(arm, {"part": "gaussian", "window": window}, seed)
    for seed in range(seeds or 8):
        for window in (12, 10, 8):
            for arm in (*SCORES, *(("pool", "random") if window < 12 else ())):
                yield Trial(arm, {"part": "vetting", "window": window}, seed)
    for shape in SHAPES:
        yield Trial("proteus", {"part": "decode", "shape": shape, "window": 16}, 0)
    for size in SIZES:
        yield Trial("proteus", {"part": "bytes", "model": size}, 0)
    for candidate in range(8):
        yield Trial("proteus", {"part": "marginal", "window": 12, "candidate": candidate}, candidate)
    yield Trial("proteus", {"part": "format"}, 0)


def run(trial: Trial) -> dict[str, float]:
    """Measure one arm; what models and Hessians cost is paid once and cached."""
    from assay.methods.proteus import experiments

    return experiments.PARTS[str(trial.setting["part"])](trial)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Codes, vetting, layers, models, compensation, bytes and speed."""
    from assay.methods.proteus.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="proteus",
    question="Is a trellis code that is computed, and never looked up, as good as the best codes at 2 bits?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
