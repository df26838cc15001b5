"""Clean images in the outputs of denoisers, against what diffusers' schedulers make of them."""

import diffusers
import pytest
import torch
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.prediction import FAMILIES, NoiseLevel, NoiseSchedule

TYPES = ("epsilon", "v_prediction", "sample")


def scheduler(name: str, prediction_type: str = "epsilon", steps: int = 7, **options):
    if not name.startswith("FlowMatch"):
        options["prediction_type"] = prediction_type
    if name in ("DDIMScheduler", "DDPMScheduler", "LCMScheduler", "TCDScheduler"):
        options["clip_sample"] = False
    made = getattr(diffusers, name)(**options)
    made.set_timesteps(steps)
    return made


def cases():
    for name in FAMILIES:
        if name.startswith("FlowMatch"):
            yield name, "flow"
            continue
        for kind in TYPES:
            unknown = name == "EulerAncestralDiscreteScheduler" and kind == "sample"
            unknown |= name.startswith("EDM") and kind == "sample"
            unknown |= name == "PNDMScheduler" and kind == "sample"
            if not unknown:
                yield name, kind


def draws(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=generator) for _ in range(2))  # pyright: ignore[reportReturnType]


def perfect(kind: str, name: str, made, clean: Tensor, noise: Tensor, level: NoiseLevel) -> Tensor:
    """What a perfect denoiser returns."""
    x = level.signal * clean + level.noise * noise
    if kind == "flow":
        return noise - clean
    if name.startswith("EDM"):
        # The output that the scheduler's own preconditioning turns into the clean image.
        zero = made.precondition_outputs(x, torch.zeros_like(x), torch.tensor(level.noise))
        one = made.precondition_outputs(x, torch.ones_like(x), torch.tensor(level.noise))
        return (clean - zero) / (one - zero)
    if kind == "sample":
        return clean
    if kind == "epsilon":
        return noise
    # The velocity of the sample scaled to variance 1.
    share = level.alpha_bar
    return share**0.5 * noise - (1 - share) ** 0.5 * clean


@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_perfect_denoiser_shows_the_clean_image(name, kind):
    made = scheduler(name, kind)
    schedule = NoiseSchedule(made)
    clean, noise = draws()
    levels = []
    for index in range(schedule.num_steps):
        level = schedule.level(index)
        x = level.signal * clean + level.noise * noise
        output = perfect(kind, name, made, clean, noise, level)
        torch.testing.assert_close(schedule.clean(output, x, level), clean, rtol=1e-4, atol=1e-4)
        seen = schedule.model_input(x, level)
        torch.testing.assert_close(schedule.from_model_input(seen, level), x, rtol=1e-6, atol=1e-6)
        levels.append(level.alpha_bar)
        if name != "PNDMScheduler":
            assert 0 <= schedule.posterior_variance(index) <= 1
    # PNDM makes its second timestep twice.
    assert levels == sorted(levels)
    assert schedule.level(schedule.num_steps).alpha_bar == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [case for case in cases() if case[0] not in ("PNDMScheduler", "LCMScheduler", "TCDScheduler")],
)
def test_the_clean_image_is_the_schedulers_own(name, kind):
    made = scheduler(name, kind)
    schedule = NoiseSchedule(made)
    generator = torch.Generator().manual_seed(1)
    for index, timestep in enumerate(made.timesteps):
        x = torch.randn(2, 3, 4, 4, generator=generator)
        output = torch.randn(2, 3, 4, 4, generator=generator)
        level = schedule.level(index)
        seen = made.scale_model_input(x, timestep) if hasattr(made, "scale_model_input") else x
        torch.testing.assert_close(schedule.model_input(x, level), seen, rtol=1e-5, atol=1e-6)
        if hasattr(made, "convert_model_output"):
            if made.step_index is None:
                made._init_step_index(timestep)
            # DEIS converts to the noise instead.
            converted = made.convert_model_output(output, sample=x)
            expected = None if name.startswith("DEIS") else converted
            made.step(output, timestep, x)
        else:
            result = made.step(output, timestep, x)
            expected = getattr(result, "pred_original_sample", None)
            if kind == "flow":
                expected = result.prev_sample if index == len(made.timesteps) - 1 else None
        if expected is not None:
            torch.testing.assert_close(schedule.clean(output, x, level), expected, rtol=1e-4, atol=1e-4)


def test_a_solver_with_flow_sigmas():
    made = scheduler("UniPCMultistepScheduler", "flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    schedule = NoiseSchedule(made)
    clean, noise = draws()
    level = schedule.level(2)
    assert level.signal == pytest.approx(1 - level.noise)
    x = level.signal * clean + level.noise * noise
    torch.testing.assert_close(schedule.clean(noise - clean, x, level), clean)


def test_learned_variances_are_left_out():
    schedule = NoiseSchedule(scheduler("DDPMScheduler"))
    clean, noise = draws()
    level = schedule.level(3)
    x = level.signal * clean + level.noise * noise
    torch.testing.assert_close(schedule.clean(torch.cat([noise, clean], dim=1), x, level), clean)


def test_the_posterior_variance_is_ddpms():
    made = scheduler("DDPMScheduler", steps=10)
    schedule = NoiseSchedule(made)
    for index, timestep in enumerate(made.timesteps[:-1]):
        expected = float(made._get_variance(int(timestep)))
        assert schedule.posterior_variance(index) == pytest.approx(expected, rel=1e-4)
    assert schedule.posterior_variance(9) == 0


def test_the_level_of_a_training_timestep():
    made = scheduler("DDIMScheduler")
    schedule = NoiseSchedule(made)
    assert schedule.level_at(500).alpha_bar == pytest.approx(float(made.alphas_cumprod[500]))
    with pytest.raises(InputError, match="timestep 1000 is outside"):
        schedule.level_at(1000)
    with pytest.raises(InputError, match="no discrete training schedule"):
        NoiseSchedule(scheduler("FlowMatchEulerDiscreteScheduler")).level_at(3)


def test_unknown_schedulers_and_predictions_are_refused_with_the_list():
    class Unknown:
        config: dict[str, str] = {}  # noqa: RUF012

    with pytest.raises(InputError, match="does not know Unknown; use one of DDPMScheduler, DDIMScheduler"):
        NoiseSchedule(Unknown())
    with pytest.raises(InputError, match="prediction type 'velocity'"):
        NoiseSchedule(scheduler("DDPMScheduler", "velocity"))
