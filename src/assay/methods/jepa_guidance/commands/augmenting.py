"""The verb `augment`: a data set with rare images added."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.errors import InputError
from assay.methods.jepa_guidance.commands.parts import (
    Device,
    Flag,
    Images,
    Out,
    load_scorer,
    printer,
    report_unreadable,
)
from assay.methods.jepa_guidance.progress_bars import progress_bar

if TYPE_CHECKING:
    from assay.methods.jepa_guidance.images import ImageFolder


def augment(
    images: Images,
    *,
    model: str,
    encoder: str,
    out: Out,
    rare_fraction: float = 0.2,
    candidates: float = 2.0,
    classes: Literal["proportional", "uniform"] = "proportional",
    guidance_scale: float | None = None,
    steps: int = 50,
    eta: float | None = None,
    eta_total: float | None = None,
    tau: float = 0.8,
    k: int = 9,
    assume_sign: Literal[1, -1] | None = None,
    batch_size: int = 16,
    device: Device = "auto",
    seed: int = 0,
    quiet: Flag = False,
) -> None:
    """Add rare but valid images to a data set. The same command again continues an interrupted one.

    More candidates than needed are sampled with guidance. Valid are those that lie within the data by the
    precision test (inside the ball of an image's three nearest neighbours, in principal components of
    pixels); of them the rarest by the calibrated score are kept. OUT/dataset has the originals, the new
    images and metadata.csv (which says what is generated), OUT/added.png shows the new ones, and
    OUT/candidates has all candidates.

    Parameters
    ----------
    images
        The data set: a folder, with a sub-folder for each class if the generator knows classes, or with
        captions in metadata.csv if it takes text.
    model
        A generator that was trained on this data set (`train-generator`).
    encoder
        A calibrated encoder.
    out
        The folder for the new data set.
    rare_fraction
        Part of the new data set that is generated.
    candidates
        Candidates for each image that is kept.
    classes
        proportional: the new images have the classes of the data set; uniform: each class as often.
    guidance_scale
        Of classifier-free guidance.
    steps
        Denoising steps.
    eta
        The largest change of a pixel by one guided step.
    eta_total
        The same over all guided steps; 0.6 by default when neither is given.
    tau
        Guide where 1 - step/steps is at most this.
    k
        How many singular values are guided.
    assume_sign
        1: low scores are rare; -1: high scores are. By default what `calibrate` measured.
    batch_size
        Images at a time.
    device
        auto takes a GPU if there is one.
    seed
        Of the first candidate.
    quiet
        Print nothing.
    """
    from assay.methods.jepa_guidance.augmented_set import (
        added_count,
        condition_plan,
        select_candidates,
        write_augmented,
    )
    from assay.methods.jepa_guidance.commands.sampling import (
        finish,
        load_pipeline,
        sources_of,
        step_lengths,
    )
    from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
    from assay.methods.jepa_guidance.sampling_job import SamplingJob, run_job

    if not 0 < rare_fraction < 1:
        raise InputError(f"the rare fraction must be between 0 and 1, got {rare_fraction}")
    if candidates < 1:
        raise InputError(f"at least 1 candidate an image is needed, got {candidates}")
    if out.resolve() == images.resolve() or images.resolve() in out.resolve().parents:
        raise InputError(f"{out} lies in the data set: choose another --out")
    console = printer(quiet)
    config = JEPAGuidanceConfig(
        **step_lengths(eta, eta_total), tau=tau, k=k, assume_sign=assume_sign, seed=seed
    )
    scorer = load_scorer(encoder, device)
    sign = scorer.rare_sign(assume_sign)
    pipeline = load_pipeline(model, device)
    folder = _read(images, pipeline, console)
    added = added_count(len(folder.names), rare_fraction)
    plan = condition_plan(folder, pipeline, classes, seed)
    job = SamplingJob(
        steps=steps,
        seed=seed,
        batch_size=batch_size,
        prompts=plan.prompts,
        classes=plan.classes,
        guidance_scale=guidance_scale,
        config=config,
        sources=sources_of(model, encoder),
    )
    count = round(candidates * added)
    with progress_bar("Sampling", count, quiet=quiet) as advance:
        run_job(job, pipeline, count, out / "candidates", scorer=scorer, advance=advance)
    rows = finish(job, out / "candidates", count, scorer, quiet)
    selection = select_candidates(folder, out / "candidates", rows, added, sign)
    write_augmented(folder, out, selection, plan)
    console.print(
        f"{selection.valid} of {count} candidates lie within the data; the {len(selection.rows)} rarest of "
        f"them were added to {len(folder.names)} images: {out / 'dataset'}",
        markup=False,
    )
    if len(selection.rows) < added:
        console.print(f"{added} were wanted: pass more --candidates, or a smaller --eta-total")


def _read(images: Path, pipeline: Any, console: Any) -> ImageFolder:
    from assay.methods.jepa_guidance.images import read_images

    unet = getattr(pipeline, "unet", None)
    if unet is None or hasattr(pipeline, "vae"):
        raise InputError(
            f"augment takes a generator of pixels that was trained on the data set, not a "
            f"{type(pipeline).__name__}: use sample"
        )
    folder = read_images(images, int(unet.config["sample_size"]), int(unet.config["in_channels"]))
    report_unreadable(folder, console)
    return folder
