"""What the trials of the study share: model, pairs, folds, cylinders, and measurements kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.cache import cached
from assay.methods.crh.concepts import (
    Concept,
    load_concepts,
    load_questions,
    written_detector,
    written_pairs,
)
from assay.methods.crh.cylinder import Axis, Cylinder, fit_cylinder
from assay.methods.crh.extraction import DifferenceSet, Site, extract_differences
from assay.methods.crh.generation import generate_pairs
from assay.methods.crh.margin import ConceptMargin
from assay.methods.crh.pairs import ConceptPairs, load_pairs
from assay.methods.crh.steering import Position
from assay.methods.crh.study import DESIGNS, Design
from assay.methods.crh.threshold import minimal_strength
from assay.methods.crh.verdict import GRADIENT_AT
from assay.study import Trial

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Arrays = Mapping[str, np.ndarray]
Measured = dict[str, float]
# Part of every cache key; to be raised when what is measured changes.
VERSION = 1
READ: Site = "mean"


@dataclass(frozen=True)
class Bench:
    """One concept on one model, with some questions held out.

    Attributes:
        source: the model's name.
        fold: which questions are held out: fold `fold % folds` of the random partition `fold // folds`.
    """

    source: str
    concept: str
    fold: int

    @classmethod
    def of(cls, trial: Trial) -> Bench:
        """The bench on which a trial is measured."""
        return cls(str(trial.setting["model"]), str(trial.setting["concept"]), trial.seed)

    @property
    def design(self) -> Design:
        return DESIGNS[self.source]

    @property
    def layer(self) -> int:
        return self.design.layers[0]

    @property
    def seed(self) -> int:
        """Of random directions, which differ between concepts and folds."""
        return 1000 * self.fold + self.design.concepts.index(self.concept)

    @property
    def pairs(self) -> ConceptPairs:
        return pairs_of(self.source, self.concept)

    @property
    def others(self) -> list[str]:
        """The other concepts, beginning with the next one."""
        names = self.design.concepts
        place = names.index(self.concept)
        return [*names[place + 1 :], *names[:place]]

    def split(self) -> tuple[list[int], list[int]]:
        """Indices of training and of held-out samples."""
        partition, fold = divmod(self.fold, self.design.folds)
        order = np.random.default_rng(partition).permutation(len(self.pairs))
        held_out = sorted(order[fold :: self.design.folds].tolist())
        return sorted(set(range(len(self.pairs))) - set(held_out)), held_out

    def tested(self) -> list[int]:
        """The held-out samples of the costly parts."""
        return self.split()[1][: self.design.tested]

    def activations(self, read: Site = READ) -> DifferenceSet:
        return activations(self.source, self.concept, read)

    def differences(self, layer: int | None = None, read: Site = READ) -> Float[Tensor, "n width"]:
        """Of all samples, held out or not."""
        return self.activations(read).differences(self.layer if layer is None else layer)

    def cylinder(self, layer: int | None = None, read: Site = READ, axis: Axis = "diffmean") -> Cylinder:
        """Fitted to the training samples."""
        return _cylinder(self, self.layer if layer is None else layer, read, axis)

    def margin(
        self, layer: int | None = None, position: Position = "output", **options: Any
    ) -> ConceptMargin:
        model, tokenizer = model_of(self.source)
        return ConceptMargin(
            model,
            tokenizer,
            self.pairs,
            self.layer if layer is None else layer,
            position=position,
            **options,
        )

    def kept(self, part: str, compute: Callable[[], dict[str, np.ndarray]]) -> Arrays:
        """What `compute` returns, computed once for this bench and kept on the disk."""
        key = {"concept": self.concept, "fold": self.fold, "pairs": self.pairs.digest()}
        return kept(self.source, part, key, compute)


@cache
def _cylinder(bench: Bench, layer: int, read: Site, axis: Axis) -> Cylinder:
    train, _ = bench.split()
    return fit_cylinder(bench.activations(read).subset(train), layer, axis=axis)


def kept(
    source: str, part: str, key: Mapping[str, Any], compute: Callable[[], dict[str, np.ndarray]]
) -> Arrays:
    """Arrays that cost passes through a model, computed once and kept on the disk."""

    def build(folder: Path) -> None:
        np.savez(folder / "arrays.npz", **compute())  # pyright: ignore[reportArgumentType]

    design = json.loads(json.dumps(asdict(DESIGNS[source])))
    whole = {"model": source, "part": part, "version": VERSION, "design": design, **key}
    with np.load(cached("crh-study", whole, build) / "arrays.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def model_of(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer of a name; `"tiny-random"` is made here, without weights from anywhere."""
    if source == "tiny-random":
        return _tiny_random()
    from assay import lm

    return lm.load(source, dtype="float32" if source == "embedded" else "bfloat16")


def _tiny_random() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A random Llama of 4 blocks that reads bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]\n"
    )
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        vocab_size=len(letters) + 1, max_position_embeddings=512, bos_token_id=None,
        eos_token_id=len(letters), pad_token_id=len(letters),
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        # Weights large enough that what was read before a token matters.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0.0, 0.25)
    return model.eval(), tokenizer


@cache
def concept_of(source: str, concept: str) -> Concept:
    """A concept with the detector that judges answers: that of the pairs in use."""
    found = load_concepts()[concept]
    return found if DESIGNS[source].generated else replace(found, detector=written_detector(concept))


@cache
def pairs_of(source: str, concept: str) -> ConceptPairs:
    """The pairs of a concept: hand-written ones, or those that the model writes."""
    design = DESIGNS[source]
    if not design.generated:
        return written_pairs([concept]).subset(range(design.questions))
    about = concept_of(source, concept)
    questions = load_questions(kind=about.kind)

    def build(folder: Path) -> None:
        model, tokenizer = model_of(source)
        generate_pairs(model, tokenizer, about, questions).pairs.save(folder / "pairs.jsonl")

    key = {"model": source, "concept": concept, "questions": questions, "version": VERSION}
    return load_pairs(cached("crh-study-pairs", key, build) / "pairs.jsonl")


@cache
def activations(source: str, concept: str, read: Site) -> DifferenceSet:
    """Activations of all pairs of a concept at both layers of the design."""
    design, pairs = DESIGNS[source], pairs_of(source, concept)

    def compute() -> dict[str, np.ndarray]:
        model, tokenizer = model_of(source)
        found = extract_differences(model, tokenizer, pairs, design.layers, position=read)
        return {"present": found.with_concept.numpy(), "absent": found.without_concept.numpy()}

    arrays = kept(source, "activations", {"pairs": pairs.digest(), "read": read}, compute)
    present, absent = (torch.from_numpy(arrays[name]) for name in ("present", "absent"))
    return DifferenceSet(present, absent, design.layers, "chat", read, (concept,) * len(pairs))


@dataclass(frozen=True)
class Sensitivities:
    """What is measured of every sample of a concept while it is held out.

    Attributes:
        gradients: of the margin, at 0.7 mean differences along the axis.
        onsets: along the axis, in mean differences; the largest strength where a sample never fires.
        never: where it does not.
    """

    gradients: Float[Tensor, "n width"]
    onsets: Float[np.ndarray, " n"]
    never: np.ndarray

    def normals(self, axis: Float[Tensor, " width"]) -> Float[Tensor, "n width"]:
        """Unit vectors of the gradients' parts orthogonal to an axis."""
        rows = self.gradients - (self.gradients @ axis).unsqueeze(1) * axis
        return rows / rows.norm(dim=1, keepdim=True)


def sensitivities(bench: Bench) -> Sensitivities:
    """Of all samples of the bench's partition: every sample is measured on the axis that has not seen it."""
    folds, first = bench.design.folds, bench.fold - bench.fold % bench.design.folds
    found = [_held_out_sensitivities(replace(bench, fold=first + fold)) for fold in range(folds)]
    indices = np.concatenate([replace(bench, fold=first + fold).split()[1] for fold in range(folds)])
    order = np.argsort(indices)
    together = {name: np.concatenate([part[name] for part in found])[order] for name in found[0]}
    return Sensitivities(
        torch.from_numpy(together["gradients"]).double(), together["onsets"], together["never"]
    )


@cache
def _held_out_sensitivities(bench: Bench) -> Arrays:
    def compute() -> dict[str, np.ndarray]:
        cylinder, margin, design = bench.cylinder(), bench.margin(), bench.design
        unit = cylinder.axis_norm
        gradients, onsets, never = [], [], []
        for i in bench.split()[1]:
            gradients.append(margin.grad(i, GRADIENT_AT * unit * cylinder.axis).numpy())
            found = onset(margin, i, cylinder.axis, unit, design)
            onsets.append(found[0])
            never.append(found[1])
        return {"gradients": np.stack(gradients), "onsets": np.array(onsets), "never": np.array(never)}

    return bench.kept("sensitivities", compute)


def onset(
    margin: ConceptMargin, i: int, direction: Float[Tensor, " width"], unit: float, design: Design
) -> tuple[float, bool]:
    """Where the margin first reaches zero, in units, interpolated on a grid; and whether it never does."""
    # The grid alone: a bracket as wide as its end is never narrowed.
    found = minimal_strength(
        margin, i, direction, design.onset_max * unit, steps=design.onset_steps, tolerance=1.0
    )
    return found.value / unit, found.censored
