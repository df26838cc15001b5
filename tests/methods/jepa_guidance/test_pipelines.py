"""JEPA guidance of diffusers' pipelines, on tiny instances with random weights."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.pipelines.ddim.pipeline_ddim import DDIMPipeline
from diffusers.pipelines.ddpm.pipeline_ddpm import DDPMPipeline
from diffusers.pipelines.dit.pipeline_dit import DiTPipeline
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion import StableDiffusionPipeline
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
from diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl import StableDiffusionXLPipeline
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from diffusers.schedulers.scheduling_pndm import PNDMScheduler
from torch import Tensor, nn
from torch.nn import functional

from assay.errors import InputError
from assay.methods.jepa_guidance import JEPAGuidance, JEPAGuidanceConfig, JEPAScorer
from assay.methods.jepa_guidance.adapters import adapter_for
from assay.methods.jepa_guidance.jacobian import differentiable_encoder
from assay.methods.jepa_guidance.prediction import NoiseSchedule
from assay.methods.jepa_guidance.randomised_svd import random_directions, surrogate_reference
from assay.methods.jepa_guidance.scorer import directions_seed

STEPS = 5
CONFIG = JEPAGuidanceConfig(eta=0.05, k=3, assume_sign=1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_vae(latent_channels: int = 4, **options: Any) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=latent_channels,
        norm_num_groups=4,
        sample_size=16,
        **options,
    )


def tiny_unet(**options: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        **options,
    )


def stable_diffusion(scheduler: Any = None, vae: nn.Module | None = None) -> StableDiffusionPipeline:
    return StableDiffusionPipeline(
        vae=tiny_vae() if vae is None else vae,
        text_encoder=None,
        tokenizer=None,
        unet=tiny_unet(),
        scheduler=scheduler
        or DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def stable_diffusion_xl() -> StableDiffusionXLPipeline:
    unet = tiny_unet(
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=6 * 4 + 16,
        transformer_layers_per_block=1,
    )
    return StableDiffusionXLPipeline(
        vae=tiny_vae(latents_mean=[0.1, -0.1, 0.2, 0.0], latents_std=[0.9, 1.1, 1.0, 0.8]),
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=unet,
        scheduler=EulerDiscreteScheduler(beta_schedule="scaled_linear", timestep_spacing="trailing"),
        add_watermarker=False,
    )


def stable_diffusion_3() -> StableDiffusion3Pipeline:
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_projection_dim=16,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        pos_embed_max_size=16,
    )
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=tiny_vae(shift_factor=0.06, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        text_encoder_3=None,
        tokenizer_3=None,
    )


def flux(guidance_embeds: bool = True) -> FluxPipeline:
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=guidance_embeds,
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=tiny_vae(shift_factor=0.06, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer,
    )


def dit() -> DiTPipeline:
    transformer = DiTTransformer2DModel(
        sample_size=8,
        num_layers=1,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        norm_type="ada_norm_zero",
        num_embeds_ada_norm=1000,
        activation_fn="gelu-approximate",
        attention_bias=True,
    )
    return DiTPipeline(transformer=transformer, vae=tiny_vae(), scheduler=DDIMScheduler())  # pyright: ignore[reportArgumentType]


def pixel_unet() -> UNet2DModel:
    return UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )


def embeddings(*names: str, rows: int = 2) -> dict[str, Tensor]:
    """Random prompt embeddings, pooled ones included."""
    generator = seeded(3)
    shapes = {name: (rows, 16) if "pooled" in name else (rows, 5, 16) for name in names}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


PLAIN = ("prompt_embeds", "negative_prompt_embeds")
POOLED = (*PLAIN, "pooled_prompt_embeds", "negative_pooled_prompt_embeds")


@dataclass
class Case:
    """A pipeline and what it is called with."""

    pipeline: Any
    arguments: dict[str, Any] = field(default_factory=dict)

    def call(self, **others: Any) -> Any:
        return self.pipeline(**self._all(others))

    def guided(self, guidance: JEPAGuidance, **others: Any) -> Any:
        return guidance.run(self.pipeline, **self._all(others))

    def _all(self, others: dict[str, Any]) -> dict[str, Any]:
        return {
            "num_inference_steps": STEPS,
            "output_type": "pt",
            "generator": seeded(1),
            **self.arguments,
            **others,
        }


def case(name: str) -> Case:
    torch.manual_seed(0)
    size = {"height": 16, "width": 16}
    made = {
        "sd": lambda: Case(stable_diffusion(), size | embeddings(*PLAIN) | {"guidance_scale": 3.0}),
        "sd-rescaled": lambda: Case(
            stable_diffusion(PNDMScheduler(skip_prk_steps=True, steps_offset=1)),
            size | embeddings(*PLAIN) | {"guidance_scale": 3.0, "guidance_rescale": 0.6},
        ),
        "sd-plain": lambda: Case(
            stable_diffusion(DPMSolverMultistepScheduler(use_karras_sigmas=True)),
            size | embeddings("prompt_embeds") | {"guidance_scale": 1.0},
        ),
        "sdxl": lambda: Case(stable_diffusion_xl(), size | embeddings(*POOLED) | {"guidance_scale": 3.0}),
        "sd3": lambda: Case(stable_diffusion_3(), size | embeddings(*POOLED) | {"guidance_scale": 3.0}),
        "flux": lambda: Case(
            flux(), {"height": 16, "width": 24} | embeddings("prompt_embeds", "pooled_prompt_embeds")
        ),
        "flux-negative": lambda: Case(
            flux(guidance_embeds=False), size | embeddings(*POOLED) | {"true_cfg_scale": 3.0}
        ),
        "dit": lambda: Case(dit(), {"class_labels": [1, 5], "guidance_scale": 3.0}),
        "dit-plain": lambda: Case(dit(), {"class_labels": [1, 5], "guidance_scale": 1.0}),
        "ddpm": lambda: Case(DDPMPipeline(pixel_unet(), DDPMScheduler()), {"batch_size": 2}),
        "ddim": lambda: Case(DDIMPipeline(pixel_unet(), DDIMScheduler()), {"batch_size": 2}),
    }[name]()
    made.pipeline.set_progress_bar_config(disable=True)
    for module in made.pipeline.components.values():
        if isinstance(module, nn.Module):
            module.eval()
    return made


NAMES = (
    "sd",
    "sd-rescaled",
    "sd-plain",
    "sdxl",
    "sd3",
    "flux",
    "flux-negative",
    "dit",
    "dit-plain",
    "ddpm",
    "ddim",
)


def scorer(size: int = 8) -> JEPAScorer:
    torch.manual_seed(5)
    encoder = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(6 * size * size, 16),
        nn.GELU(),
        nn.Linear(16, 12),
    )
    return JEPAScorer(encoder, mean=[0.5] * 3, std=[0.5] * 3, image_size=size)


class Spy:
    """A guidance that shifts nothing and remembers what it saw."""

    def __init__(self) -> None:
        from assay.methods.jepa_guidance import GuidanceReport

        self.report = GuidanceReport()
        self.seen: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, step: Any) -> Tensor:
        with torch.no_grad():
            clean = step.predict(step.x_t)
            self.seen[step.index] = step.x_t.clone(), clean, step.to_image(clean)
        return torch.zeros_like(step.x_t)


def decoded_by_hand(made: Case, clean: Tensor) -> Tensor:
    """Images in [0, 1] of clean latents, as the pipeline's own last lines make them."""
    pipeline = made.pipeline
    if not hasattr(pipeline, "vae"):
        return clean / 2 + 0.5
    config = pipeline.vae.config
    if isinstance(pipeline, FluxPipeline):
        size = made.arguments["height"], made.arguments["width"]
        clean = pipeline._unpack_latents(clean, *size, pipeline.vae_scale_factor)
    if isinstance(pipeline, StableDiffusionXLPipeline):
        mean, deviation = (
            torch.tensor(values).view(1, 4, 1, 1) for values in (config.latents_mean, config.latents_std)
        )
        latents = clean * deviation / config.scaling_factor + mean
    else:
        latents = clean / config.scaling_factor + (config.shift_factor or 0.0)
    return pipeline.vae.decode(latents).sample / 2 + 0.5


@pytest.mark.parametrize(
    ("name", "placement"),
    [(name, "before") for name in NAMES]
    + [(name, "after") for name in ("sd", "sdxl", "sd3", "flux", "dit", "ddim")],
)
def test_the_guidance_sees_exactly_what_the_pipeline_sees(name, placement, monkeypatch):
    made = case(name)
    config = replace(CONFIG, placement=placement, tau=CONFIG.tau if placement == "before" else 1.0)
    guidance = JEPAGuidance(scorer(), config)
    spy = Spy()
    guidance._shift = spy  # pyright: ignore[reportAttributeAccessIssue]
    scheduler = made.pipeline.scheduler
    outputs: list[tuple[Tensor, Tensor]] = []
    original = type(scheduler).step

    def watched(self, model_output, timestep, sample, *others, **named):
        outputs.append((model_output.clone(), sample.clone()))
        return original(self, model_output, timestep, sample, *others, **named)

    monkeypatch.setattr(type(scheduler), "step", watched)
    images = made.guided(guidance)[0]
    assert torch.equal(images, made.call()[0])
    schedule = NoiseSchedule(scheduler)
    # With "after" the first step is reached too: its gradient is taken at the initial noise.
    assert sorted(spy.seen) == config.guided_steps(schedule.num_steps)
    for index, (x_t, clean, image) in spy.seen.items():
        output, sample = outputs[index]
        if name == "dit":
            output, sample = output[:2], sample[:2]
        torch.testing.assert_close(x_t, sample, rtol=1e-5, atol=1e-5)
        expected = schedule.clean(output, sample, schedule.level(index))
        torch.testing.assert_close(clean, expected, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(image, decoded_by_hand(made, clean), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_guided_step_moves_the_surrogate_the_right_way(name):
    values = {}
    for direction in ("rare", "common"):
        made = case(name)
        # One guided step, the last one, from the same latents.
        config = JEPAGuidanceConfig(
            eta=0.02, k=3, tau=1 / STEPS, interval=1, assume_sign=1, direction=direction
        )
        guidance = JEPAGuidance(scorer(), config)
        shift = guidance._shift
        moved = []

        def spied(step, shift=shift, moved=moved):
            found = shift(step)
            with torch.no_grad():
                for x in (step.x_t, step.x_t + found):
                    image = step.to_image(step.predict(x)).clamp(0, 1)
                    moved.append(shift.scorer.surrogate(image, 3, 2, 2, seed=0).detach())
            return found

        spied.report = shift.report
        guidance._shift = spied  # pyright: ignore[reportAttributeAccessIssue]
        images = made.guided(guidance)[0]
        values[direction] = moved[1] - moved[0]
        assert images.isfinite().all()
    assert (values["rare"] < 0).all()
    assert (values["common"] > 0).all()


@pytest.mark.parametrize("name", ["sdxl", "dit", "ddpm"])
def test_no_guidance_leaves_every_bit_as_it_was(name):
    plain = case(name).call()[0]
    without = JEPAGuidance(scorer(), JEPAGuidanceConfig(eta=0.0, k=3, assume_sign=1))
    assert torch.equal(case(name).guided(without)[0], plain)
    late = JEPAGuidance(scorer(), JEPAGuidanceConfig(tau=1e-6, k=3, assume_sign=1))
    assert torch.equal(case(name).guided(late)[0], plain)
    guided = JEPAGuidance(scorer(), CONFIG)
    assert not torch.equal(case(name).guided(guided)[0], plain)
    assert guided.report.guided == 2 * len(CONFIG.guided_steps(STEPS))


def test_the_callback_equals_a_loop_written_by_hand():
    made = case("sd")
    measure = scorer()
    guidance = JEPAGuidance(measure, CONFIG)
    with guidance.attached(made.pipeline):
        latents = made.call(callback_on_step_end=guidance, output_type="latent")[0]

    pipeline, arguments = made.pipeline, made.arguments
    scheduler, unet, vae = pipeline.scheduler, pipeline.unet, pipeline.vae
    prompts = torch.cat([arguments["negative_prompt_embeds"], arguments["prompt_embeds"]])

    def noise(x: Tensor, t: Tensor) -> Tensor:
        free, bound = unet(torch.cat([x, x]), t, encoder_hidden_states=prompts).sample.chunk(2)
        return free + 3.0 * (bound - free)

    scheduler.set_timesteps(STEPS)
    x = torch.randn((2, 4, 8, 8), generator=seeded(1))
    for i, t in enumerate(scheduler.timesteps):
        if 1 - i / STEPS <= CONFIG.tau:
            point = x.detach().requires_grad_()
            alpha = scheduler.alphas_cumprod[t]
            clean = (point - (1 - alpha).sqrt() * noise(point, t)) / alpha.sqrt()
            image = (vae.decode(clean / vae.config.scaling_factor).sample / 2 + 0.5).clamp(0, 1)
            z = (functional.interpolate(image, (8, 8), mode="bilinear") - 0.5) / 0.5
            directions = random_directions(
                5, z, torch.Generator().manual_seed(directions_seed(CONFIG.seed, i, 0))
            )
            with differentiable_encoder():
                _, gradient = surrogate_reference(
                    measure.encoder, z.detach(), k=3, power_iters=2, directions=directions
                )
            (gradient,) = torch.autograd.grad(z, point, gradient)
            x = x - CONFIG.eta * gradient / gradient.flatten(1).abs().amax(dim=1).view(-1, 1, 1, 1)
        with torch.no_grad():
            x = scheduler.step(noise(x, t), t, x).prev_sample
    torch.testing.assert_close(latents, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sd", "dit"])
def test_placement_after_guides_the_first_step_too(name):
    config = replace(CONFIG, placement="after", tau=1.0)
    guidance = JEPAGuidance(scorer(), config)
    assert case(name).guided(guidance)[0].isfinite().all()
    assert guidance.report.guided == 2 * STEPS
    assert guidance.report.unreachable == 0


def test_the_first_step_is_counted_as_unreachable():
    made = case("sd")
    guidance = JEPAGuidance(scorer(), JEPAGuidanceConfig(eta=0.05, k=3, assume_sign=1, tau=1.0))
    made.guided(guidance)
    assert guidance.report.unreachable == 1
    assert guidance.report.guided == 2 * (STEPS - 1)


def test_a_batch_mate_never_changes_a_sample():
    noise = torch.randn((2, 4, 8, 8), generator=seeded(8))

    def run(rows: list[int]) -> Tensor:
        made = case("sd")
        for name in PLAIN:
            made.arguments[name] = made.arguments[name][rows]
        guidance = JEPAGuidance(scorer(), CONFIG)
        return made.guided(guidance, latents=noise[rows], output_type="latent")[0]

    both = run([0, 1])
    torch.testing.assert_close(run([1, 0]), both.flip(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run([1]), both[1:], rtol=1e-4, atol=1e-5)


def test_ones_own_callback_runs_first_and_keeps_its_tensors():
    made = case("sd")
    seen = []

    def own(pipeline, index, timestep, tensors):
        seen.append(sorted(tensors))
        return {"latents": tensors["latents"] * 1.0}

    guidance = JEPAGuidance(scorer(), CONFIG)
    images = made.guided(
        guidance,
        callback_on_step_end=own,
        callback_on_step_end_tensor_inputs=["prompt_embeds", "latents"],
    )[0]
    assert seen == [["latents", "prompt_embeds"]] * STEPS
    again = JEPAGuidance(scorer(), CONFIG)
    assert torch.equal(case("sd").guided(again)[0], images)


def test_the_tiny_decoder_guides_and_the_vae_makes_the_result():
    torch.manual_seed(2)
    tiny = AutoencoderTiny(
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        latent_channels=4,
    )
    config = JEPAGuidanceConfig(eta=0.05, k=3, assume_sign=1, decode="tiny")
    guidance = JEPAGuidance(scorer(), config, tiny_decoder=tiny)
    images = case("sd").guided(guidance)[0]
    through_vae = case("sd").guided(JEPAGuidance(scorer(), CONFIG))[0]
    assert images.shape == through_vae.shape
    assert not torch.equal(images, through_vae)
    assert all(parameter.requires_grad for parameter in tiny.parameters())


@pytest.mark.parametrize("name", ["sd", "flux", "dit"])
def test_checkpointing_changes_memory_and_no_number(name):
    plain = case(name).guided(JEPAGuidance(scorer(), CONFIG))[0]
    made = case(name)
    config = JEPAGuidanceConfig(eta=0.05, k=3, assume_sign=1, checkpoint=True)
    images = made.guided(JEPAGuidance(scorer(), config))[0]
    torch.testing.assert_close(images, plain, rtol=1e-4, atol=1e-5)
    adapter = adapter_for(made.pipeline, made.arguments)
    assert not adapter.denoiser.is_gradient_checkpointing


def test_everything_is_as_it_was_after_an_error(monkeypatch):
    made = case("sd")
    unet, vae = made.pipeline.unet, made.pipeline.vae
    guidance = JEPAGuidance(scorer(), CONFIG)

    def broken(step):
        raise RuntimeError("broken")

    broken.report = guidance.report
    monkeypatch.setattr(guidance, "_shift", broken)
    with pytest.raises(RuntimeError, match="broken"):
        made.guided(guidance)
    assert not unet._forward_pre_hooks
    assert all(parameter.requires_grad for module in (unet, vae) for parameter in module.parameters())
    assert "step" not in vars(made.pipeline.scheduler)
    monkeypatch.undo()
    guidance._shift = JEPAGuidance(scorer(), CONFIG)._shift
    made.guided(guidance)


def test_a_vae_that_overflows_in_half_precision_is_upcast_for_the_guidance():
    made = case("sdxl")
    reference = made.guided(JEPAGuidance(scorer(), CONFIG), output_type="latent")[0]
    made = case("sdxl")
    vae = made.pipeline.vae
    assert vae.config.force_upcast
    vae.to(torch.float16)
    seen = []
    vae.decoder.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    latents = made.guided(JEPAGuidance(scorer(), CONFIG), output_type="latent")[0]
    assert set(seen) == {torch.float32}
    assert vae.dtype == torch.float16
    torch.testing.assert_close(latents, reference, rtol=1e-2, atol=1e-2)


def test_a_pipeline_in_bfloat16_is_guided_in_float32():
    made = case("sd")
    made.pipeline.to(torch.bfloat16)
    made.arguments |= {name: made.arguments[name].bfloat16() for name in PLAIN}
    guidance = JEPAGuidance(scorer(), CONFIG)
    latents = made.guided(guidance, output_type="latent")[0]
    assert latents.dtype == torch.bfloat16
    assert latents.isfinite().all()
    assert guidance.report.guided == 2 * len(CONFIG.guided_steps(STEPS))


def test_what_cannot_be_guided_is_refused():
    made = case("sd")
    guidance = JEPAGuidance(scorer(), CONFIG)
    with pytest.raises(InputError, match=r"guidance\.run"):
        made.call(callback_on_step_end=guidance)
    with pytest.raises(InputError, match="takes no callback"), guidance.attached(case("ddpm").pipeline):
        pass
    with pytest.raises(InputError, match="does not know object"):
        adapter_for(object())
    with guidance.attached(made.pipeline), pytest.raises(InputError, match="attached"):
        made.guided(guidance)
    with (
        guidance.attached(case("sd").pipeline),
        pytest.raises(InputError, match=r"guidance\.run"),
    ):
        made.call(callback_on_step_end=guidance)
    from diffusers.schedulers.scheduling_heun_discrete import HeunDiscreteScheduler

    with pytest.raises(InputError, match="HeunDiscreteScheduler; use one of DDPMScheduler"):
        Case(stable_diffusion(HeunDiscreteScheduler()), made.arguments).guided(guidance)
    with pytest.raises(InputError, match="tiny_decoder"):
        JEPAGuidance(scorer(), JEPAGuidanceConfig(decode="tiny", assume_sign=1, k=3))
    negative = case("flux-negative")
    flux_guidance = JEPAGuidance(scorer(), CONFIG)
    with (
        flux_guidance.attached(negative.pipeline),
        pytest.raises(InputError, match="true_cfg_scale"),
    ):
        negative.call(callback_on_step_end=flux_guidance)


def test_a_denoiser_that_cannot_be_called_again_is_refused():
    made = case("sd")
    made.pipeline.unet._hf_hook = object()
    with pytest.raises(InputError, match="offloaded"):
        made.guided(JEPAGuidance(scorer(), CONFIG))
    made = case("sd")
    with pytest.raises(InputError, match="rows for"):
        # At the end of step 0 the guidance runs for step 1, its first.
        made.arguments["callback_on_step_end"] = lambda pipeline, index, timestep, tensors: {
            "latents": tensors["latents"][:1].repeat(3, 1, 1, 1)
        }
        made.guided(JEPAGuidance(scorer(), CONFIG))


def test_a_shift_beyond_the_range_of_a_pixel_model_is_refused():
    with pytest.raises(InputError, match="whole range"):
        case("ddpm").guided(JEPAGuidance(scorer(), JEPAGuidanceConfig(eta=3.0, k=3, assume_sign=1)))


def test_values_that_are_not_finite_are_skipped_and_too_many_are_an_error():
    made = case("sd")
    guidance = JEPAGuidance(scorer(), CONFIG)
    original = made.pipeline.vae.decode

    def broken(latents, **options):
        image = original(latents, **options)[0]
        return (image * torch.tensor([1.0, float("nan")]).view(2, 1, 1, 1),)

    made.pipeline.vae.decode = broken
    with warnings.catch_warnings(), pytest.raises(InputError, match="had to skip 4 of 8 sample-steps"):
        warnings.simplefilter("error")
        made.guided(guidance, output_type="latent")
