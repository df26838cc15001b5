"""The study of JEPA guidance: does it make what is rare in the world, and does the score know what is rare?

All images are real digits, thinned twice: the encoders are trained on a *world* set in which 5 to 9 are rare,
the generator on another set in which odd digits are rare. What is rare is judged without any encoder (kNN
distances in principal components, a support-vector machine for the class) and by a second encoder. A seed
trains its own encoders and, on `digits`, its own generator; on `mnist` all seeds share one generator.

- `calibration`: does a low score mean rare? Encoders of several kinds, and of one kind (LeJEPA) with more or
  less weight on the Gaussian term, which keeps embeddings from collapsing, against the agreement of views.
- `guidance`: sets of samples along a path of strengths, from none to too much. Methods are compared at the
  rarest point of the path at which recall and precision are still at least 80% of the unguided sampler's.
- `ablation`: guidance at one strength with other tau and k, and along the exact full score.
- `surrogate`: the randomised surrogate beside exact singular values and exact gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.methods.jepa_guidance.study_claims import CLAIMS, KS, POWER_ITERS, TAUS, WEIGHTS, K
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

# What is swept: the sum of all shifts (largest absolute change in [-1, 1]) for guidances, and each baseline's
# own parameter for the others.
STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "jepa": (0.4, 0.8, 1.6, 2.4),
    "jepa-reversed": (0.8, 2.4),
    "jepa-invariance": (0.2, 0.4, 0.8, 1.6),
    "jepa-uncalibrated": (0.4, 1.6),
    "random": (0.8, 1.6, 3.2, 4.8),
    "self-guided": (0.8, 1.6, 3.2, 4.8),
    "minority": (0.4, 0.8, 1.6, 2.4),
    "neighbours": (0.2, 0.4, 0.8, 1.6),
    "boost-and-skip": (1.5, 2.0, 3.0, 4.0),
    "temperature": (1.1, 1.2, 1.3, 1.4),
    "cads": (0.1, 0.25, 0.5, 1.0),
    "minority-prompt": (0.02, 0.05, 0.1, 0.2),
}
ARMS = tuple(arm for arm in STRENGTHS if arm not in ("cads", "minority-prompt"))
# Encoders beside LeJEPA's, of the calibration only.
ENCODERS = ("vicreg", "ijepa")
# The rows of the table of ablations; all are guided equally far.
ABLATIONS = ("base", "exact", *(f"tau-{tau:g}" for tau in TAUS), *(f"k-{k}" for k in KS if k != K))
ABLATED = 1.6
# Seeds 0 to 4 were spent on a first run, after which claims were added (see the README).
FIRST_SEED = 5


@dataclass(frozen=True)
class Design:
    """How much is measured.

    Args:
        seeds: of digits and of MNIST.
        side_seeds: as many of the seeds of digits measure all parts; the others leave out the encoders that
            do not guide, the ablation, the surrogate and the samples by class.
        samples: images in a set.
        sampler_steps: steps of the sampler.
        encoder_steps: of training LeJEPA where the Gaussian term dominates; half of it elsewhere.
        generator_steps: of training, of digits and of MNIST.
        generators: how many generators the seeds of MNIST share; on digits each seed has its own.
        surrogates: held-out images on which the surrogate is measured.
    """

    seeds: Mapping[str, int]
    side_seeds: int
    samples: int
    sampler_steps: int
    encoder_steps: int
    generator_steps: Mapping[str, int]
    generators: int
    surrogates: int


DESIGNS: Mapping[str, Design] = {
    "tiny": Design({"digits": 1, "mnist": 1}, 1, 40, 6, 300, {"digits": 60, "mnist": 60}, 1, 4),
    "small": Design({"digits": 7, "mnist": 5}, 5, 160, 20, 700, {"digits": 3000, "mnist": 4800}, 1, 48),
    "large": Design(
        {"digits": 20, "mnist": 20}, 20, 2048, 100, 4000, {"digits": 6000, "mnist": 20000}, 20, 512
    ),
}
SIZES: Mapping[Scale, str] = {"smoke": "tiny", "quick": "small", "full": "large"}


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Everything seed by seed, so that what is trained for one trial serves the next ones."""
    size = SIZES[scale]
    for data, count in DESIGNS[size].seeds.items():
        for seed in range(FIRST_SEED, FIRST_SEED + (seeds or count)):
            yield from _of_seed(size, data, seed)


def _of_seed(size: str, data: str, seed: int) -> Iterable[Trial]:
    common = {"size": size, "data": data}
    tiny, digits = size == "tiny", data == "digits"
    side = digits and seed < FIRST_SEED + DESIGNS[size].side_seeds
    # Half the weight is left out on MNIST: its two ends say which way the sign goes.
    weights = WEIGHTS if digits else (WEIGHTS[0], WEIGHTS[-1])
    for weight in weights if not tiny else WEIGHTS[-1:]:
        yield Trial("lejepa", {"part": "calibration", **common, "weight": weight}, seed)
    if side and not tiny:
        yield from (Trial(arm, {"part": "calibration", **common}, seed) for arm in ENCODERS)
    setting = {"part": "guidance", **common}
    arms = ("plain", *ARMS) if digits else ("plain", "jepa", "random", "self-guided")
    yield from (Trial(arm, setting | {"condition": "none"}, seed) for arm in arms)
    if not digits:
        arms = ("plain", "jepa", "cads", "minority-prompt")
        yield from (Trial(arm, setting | {"condition": "text"}, seed) for arm in arms)
    if side:
        arms = ("plain", "jepa", "random", "self-guided")
        yield from (Trial(arm, setting | {"condition": "class"}, seed) for arm in arms)
        yield from (Trial(arm, {"part": "ablation", **common}, seed) for arm in ABLATIONS)
        for k in KS:
            for q in POWER_ITERS if k == K else (2,):
                yield Trial("surrogate", {"part": "surrogate", **common, "k": k, "q": q}, seed)


def run(trial: Trial) -> dict[str, float]:
    """Measure one arm; encoders, generators and samples are trained or drawn once and cached."""
    from assay.methods.jepa_guidance import experiments

    return experiments.PARTS[str(trial.setting["part"])](trial)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Images, paths of strengths, calibration, sign against weight, error bound, ablations, conditions."""
    from assay.methods.jepa_guidance.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="jepa_guidance",
    question="Does guidance by JEPA-SCORE make what is rare in the world, still valid and as diverse, and "
    "does the score know what is rare?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
