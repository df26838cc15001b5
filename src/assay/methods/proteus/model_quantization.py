"""A whole model, block by block, with everything finished kept on the disk.

The original stays untouched in memory as the teacher; the quantized model shares its embeddings and norms
with it and grows a block at a time. Source: the pipeline is QTIP's (Tseng et al. 2024); order, resumption and
checks are ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from assay.files import replacing_folder
from assay.methods.proteus.config import ProteusConfig
from assay.methods.proteus.decoder import decoder_blocks, linear_weight
from assay.methods.proteus.distillation import BLOCK, END_TO_END, TuningSettings, distill_block, distill_model
from assay.methods.proteus.evaluation import compare
from assay.methods.proteus.hessian import Block, SecondMoment, walk_blocks
from assay.methods.proteus.integration import (
    mark_quantized,
    quiet_saving,
    replace_module,
)
from assay.methods.proteus.job import Job, check_output, open_job
from assay.methods.proteus.layer_quantization import (
    LayerSettings,
    QuantizedLayer,
    prepare_inputs,
    quantize_layer,
)
from assay.methods.proteus.linear import ProteusLinear, proteus_layers
from assay.methods.proteus.plan import Plan, check_tokens, model_fingerprint, sharing_copy
from assay.methods.proteus.pool import pool
from assay.methods.proteus.report import Acceptable, QuantReport, fingerprint
from assay.methods.proteus.workers import Workers, one_thread_each, workers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Called with the weights that are done, the weights that there are, and what has just been finished.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Conduct:
    """How a quantization is carried out.

    Only `propagate`, `batch` and the settings of the stages change the result.

    Attributes:
        workers: modules that are quantized at once; all cores when None.
        cluster: Ray's address: modules are tasks there.
        resume: go on with an interrupted job.
        propagate: a block is calibrated on what the quantized blocks before it give, or the original ones.
        batch: sequences that go through a block at once.
        block: settings of the block stage of distillation.
        end_to_end: settings of its end-to-end stage.
        max_shard_size: of the safetensors files, as in `save_pretrained`.
    """

    workers: int | None = None
    cluster: str | None = None
    resume: bool = False
    propagate: Literal["quantized", "original"] = "quantized"
    batch: int = 4
    block: TuningSettings = BLOCK
    end_to_end: TuningSettings = END_TO_END
    max_shard_size: str = "5GB"


def quantize_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    config: ProteusConfig | None = None,
    *,
    calibration: Int[Tensor, "n length"],
    out: Path | str,
    held_out: Int[Tensor, "k length"] | None = None,
    acceptable: Acceptable | None = None,
    conduct: Conduct | None = None,
    on_progress: Progress | None = None,
) -> QuantReport:
    """Quantize the linear modules in a model's decoder blocks, and write the result as a transformers folder.

    The model is not changed. The result depends on the model, the tokens, the configuration and `propagate`,
    not on the number of workers or on interruptions.

    Args:
        model: a causal language model with dense weights, in evaluation mode.
        tokenizer: saved beside the model, when there is one.
        config: bits, window and so on; `modules_to_not_convert` names modules that stay as they are.
        calibration: sequences of tokens.
        out: the folder to write. When the result is not acceptable it is written to `out` + `.suspect`
            instead.
        held_out: windows of tokens on which the result is compared with the original.
        acceptable: what counts as broken.
        conduct: see `Conduct`.
        on_progress: called after every module with the weights done, all weights, and the module's path.

    Raises:
        InputError: the model, the tokens, the folder or the disk does not allow it; an interrupted job is in
            the way, or has another configuration. Nothing has been changed then.
    """
    started = time.perf_counter()
    config, conduct = config or ProteusConfig(), conduct or Conduct()
    target = Path(out)
    plan = Plan.of(model, config)
    facts: dict[str, Any] = config.to_dict() | {"modules_to_not_convert": plan.kept}
    config = ProteusConfig(**facts)
    check_tokens(calibration, model)
    check_output(target, plan.bytes_needed(model, config))
    facts = {
        "config": config.to_dict(),
        "model": model_fingerprint(model),
        "calibration": fingerprint({"ids": calibration}),
        "conduct": {key: _plain(conduct, key) for key in ("propagate", "batch", "block", "end_to_end")},
    }
    report = QuantReport(
        config.to_dict(),
        {"sequences": len(calibration), "tokens": calibration.numel()},
        skipped=plan.skipped,
    )
    with open_job(target, facts, resume=conduct.resume) as job:
        student = _quantized(model, calibration, plan, job, config, conduct, report, on_progress)
        if held_out is not None:
            report.comparison = compare(student, model, held_out)
            report.complaint = (acceptable or Acceptable()).complaint(report.comparison)
        if report.complaint:
            target = target.with_name(f"{target.name}.suspect")
            check_output(target, 0)
        report.folder, report.seconds = str(target), time.perf_counter() - started
        with replacing_folder(target) as folder, quiet_saving():
            student.save_pretrained(folder, max_shard_size=conduct.max_shard_size)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            report.write(folder)
        job.remove()
    return report


def _quantized(
    model: PreTrainedModel,
    calibration: Int[Tensor, "n length"],
    plan: Plan,
    job: Job,
    config: ProteusConfig,
    conduct: Conduct,
    report: QuantReport,
    on_progress: Progress | None,
) -> PreTrainedModel:
    """The quantized model, ready to be saved; `report` learns of modules and stages."""
    path, _ = decoder_blocks(model)
    student = sharing_copy(model)
    _quantize_blocks(student, model, calibration, plan, job, config, conduct, report, on_progress)
    if config.distill in ("e2e", "both"):
        blocks = list(student.get_submodule(path).children())
        tuned = distill_model(
            student, model, calibration, conduct.end_to_end, blocks=blocks, seed=config.seed
        )
        report.distillation.append({"stage": "e2e", **asdict(tuned)})
    for record in report.modules:
        layer = _layer(student, record["name"])
        # Distillation has moved them since the layer was encoded.
        record["alpha"], record["beta"] = layer.affine.tolist()
        record["sha256"] = fingerprint(layer.state_dict())
    mark_quantized(student, config)
    return student


def _quantize_blocks(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    calibration: Int[Tensor, "n length"],
    plan: Plan,
    job: Job,
    config: ProteusConfig,
    conduct: Conduct,
    report: QuantReport,
    on_progress: Progress | None,
) -> None:
    """Quantize, replace and distill one block after the other, or take from the job what is finished."""
    _, originals = decoder_blocks(teacher)
    distilling = config.distill in ("block", "both")
    settings = layer_settings(config)
    progress = _Counter(plan, on_progress)
    reference: list[Tensor] = []
    batches = calibration.split(conduct.batch)
    walk = walk_blocks(student, batches, propagate=conduct.propagate, wanted=plan.chosen.__contains__)
    count = conduct.workers or available_cores()
    with workers(count, conduct.cluster) as crew:
        for block in walk:
            names = [name for name in plan.chosen if name.startswith(f"{block.name}.")]
            missing = [name for name in names if name not in job]
            for name in names:
                if name in job:
                    progress.add(name)
            if missing:
                _quantize_modules(student, block.moments, missing, settings, job, crew, progress)
            for name in names:
                tensors, facts = job.read(name)
                replace_module(student, name, _stored_layer(student.get_submodule(name), tensors, config))
                report.modules.append(facts)
            if distilling:
                # What the original model has in front of this block and behind it.
                before = reference or block.inputs
                reference = [_run(block, index, hidden, originals) for index, hidden in enumerate(before)]
                _tune_block(block, reference, job, conduct, config, report)
            block.advance()


def layer_settings(config: ProteusConfig) -> LayerSettings:
    """What `quantize_layer` needs of a configuration."""
    return LayerSettings(
        bits=config.bits,
        window=config.window,
        damp=config.damp,
        compensate=config.compensate,
        seed=config.seed,
        rht=config.rht,
        pool=pool(config.window, config.bits)[:1] if config.pool == "single" else None,
    )


def _quantize_modules(
    student: PreTrainedModel,
    moments: Mapping[str, SecondMoment],
    names: list[str],
    settings: LayerSettings,
    job: Job,
    crew: Workers,
    progress: _Counter,
) -> None:
    """Quantize modules of a block at once, and store each as soon as it is finished."""
    shared = {}
    for name in names:
        group = moments[name].group
        if group not in shared:
            shared[group] = crew.share(prepare_inputs(moments[name], group=group, settings=settings))
    # The largest first, so that the last to finish is a small one.
    weights = {name: linear_weight(student.get_submodule(name)).detach().contiguous() for name in names}
    order = sorted(names, key=lambda name: -weights[name].numel())
    # A bias is corrected where there is one; none is added.
    biased = {name for name in names if getattr(student.get_submodule(name), "bias", None) is not None}
    with one_thread_each():
        tasks: dict[Future[Any], str] = {
            crew.submit(
                _quantize_one,
                weights[name],
                shared[moments[name].group],
                name,
                replace(settings, correct_bias=name in biased),
            ): name
            for name in order
        }
        for task in as_completed(tasks):
            tensors, facts = task.result()
            job.write(tasks[task], tensors, facts)
            progress.add(tasks[task])


def _quantize_one(
    weight: Tensor, inputs: Any, name: str, settings: LayerSettings
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One module, as the tensors that a checkpoint holds and the facts that the report holds."""
    layer, facts = quantize_layer(weight, inputs, name=name, settings=settings, threads=1)
    return _tensors(layer), asdict(facts)


def _tensors(layer: QuantizedLayer) -> dict[str, Tensor]:
    tensors = {
        "qweight": layer.qweight,
        "gen": layer.record,
        "affine": layer.affine.float(),
        "su": layer.su,
        "sv": layer.sv,
        "matrix_in": layer.input_transform.matrix,
        "matrix_out": layer.output_transform.matrix,
        "bias_correction": layer.bias_correction,
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _stored_layer(module: nn.Module, tensors: Mapping[str, Tensor], config: ProteusConfig) -> ProteusLinear:
    """The packed layer that replaces `module`."""
    weight = linear_weight(module)
    bias = getattr(module, "bias", None)
    layer = ProteusLinear(
        weight.shape[1],
        weight.shape[0],
        bias=bias is not None,
        config=config,
        transposed=not isinstance(module, nn.Linear),
        scale_types=(tensors["su"].dtype, tensors["sv"].dtype),
    )
    for name, tensor in tensors.items():
        if name != "bias_correction":
            setattr(layer, name, tensor)
    if bias is not None:
        corrected = bias.detach() + tensors["bias_correction"].to(bias)
        layer.bias = nn.Parameter(corrected, requires_grad=False)
    return layer.to(weight.device).eval()


@torch.no_grad()
def _run(block: Block, index: int, hidden: Tensor, originals: nn.ModuleList) -> Tensor:
    return block.call(index, hidden, originals[block.index]).cpu()


def _tune_block(
    block: Block,
    targets: list[Tensor],
    job: Job,
    conduct: Conduct,
    config: ProteusConfig,
    report: QuantReport,
) -> None:
    """Distill a block, or take its scales from the job."""
    layers = proteus_layers(block.module)
    if not layers:
        return
    if block.name in job:
        tensors, facts = job.read(block.name)
        for name, layer in layers.items():
            for key in ("affine", "su", "sv"):
                setattr(layer, key, tensors[f"{name}.{key}"].to(layer.affine.device))
    else:
        tuned = distill_block(
            block.module,
            block.call,
            block.inputs,
            targets,
            conduct.block,
            seed=config.seed + block.index,
        )
        assert tuned is not None
        facts = {"stage": block.name, **asdict(tuned)}
        scales = {
            f"{name}.{key}": getattr(layer, key)
            for name, layer in layers.items()
            for key in ("affine", "su", "sv")
        }
        job.write(block.name, scales, facts)
    report.distillation.append(facts)


class _Counter:
    """Weights that are done."""

    def __init__(self, plan: Plan, report: Progress | None) -> None:
        self._plan = plan
        self._report = report
        self._done = 0

    def add(self, name: str) -> None:
        rows, columns = self._plan.chosen[name]
        self._done += rows * columns
        if self._report is not None:
            self._report(self._done, self._plan.weights, name)


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _layer(model: nn.Module, name: str) -> ProteusLinear:
    layer = model.get_submodule(name)
    assert isinstance(layer, ProteusLinear)
    return layer


def _plain(conduct: Conduct, key: str) -> Any:
    value = getattr(conduct, key)
    return asdict(value) if isinstance(value, TuningSettings) else value
