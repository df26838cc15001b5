"""Baselines on denoisers that are known in closed form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.jepa_guidance import (
    CADS,
    BoostAndSkip,
    GuidanceStep,
    JEPAGuidanceConfig,
    MinorityClassifier,
    MinorityGuidance,
    MinorityPrompt,
    NeighbourGuidance,
    RandomDirection,
    SelfGuidedMinority,
    guided_sample,
    make_scheduler,
    train_minority_classifier,
)
from assay.methods.jepa_guidance.baselines.minority_classifier import minority_scores


def a_step(predict, x=None, **changed):
    if x is None:
        x = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    facts = {
        "t": torch.tensor(500),
        "index": 5,
        "num_steps": 10,
        "to_image": lambda clean: clean,
        "alpha_bar": 0.5,
        "alpha_bar_previous": 0.6,
        "variance": 0.25,
        "alpha_bar_at": lambda t: 0.36,
    }
    return GuidanceStep(x_t=x, predict=predict, **(facts | changed))


def linear(x, t=None):
    return 0.5 * x


def largest(shift):
    return shift.flatten(1).abs().amax(dim=1)


# ------------------------------------------------------------------------------------------------- controls


def test_random_shifts_are_as_long_as_asked_for_and_repeat():
    step = a_step(linear)
    shift = RandomDirection(0.3, seed=1)(step)
    assert torch.allclose(largest(shift), torch.full((3,), 0.3), atol=1e-6)
    assert torch.equal(shift, RandomDirection(0.3, seed=1)(step))
    assert not torch.equal(shift, RandomDirection(0.3, seed=2)(step))


def test_random_shifts_leave_the_noise_of_the_images_alone():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    state = torch.random.get_rng_state()
    RandomDirection(0.3)(a_step(linear, generator=generator))
    assert torch.equal(before, generator.get_state())
    assert torch.equal(state, torch.random.get_rng_state())


def test_neighbours_push_straight_away_from_a_single_image():
    step = a_step(lambda x, t=None: x)
    reference = torch.full((1, 1, 2, 2), 0.1)
    shift = NeighbourGuidance(reference, 0.2, k=1)(step)
    expected = step.x_t - reference
    expected = 0.2 * expected / largest(expected).view(-1, 1, 1, 1)
    assert torch.allclose(shift, expected, atol=1e-5)


def test_neighbours_take_the_nearest_only():
    x = torch.zeros(1, 1, 1, 2)
    reference = torch.tensor([[0.0, -0.1], [5.0, 0.0], [0.0, 9.0]]).view(3, 1, 1, 2)
    shift = NeighbourGuidance(reference, 1.0, k=1)(a_step(lambda x, t=None: x, x))
    assert torch.allclose(shift.flatten(), torch.tensor([0.0, 1.0]), atol=1e-5)


# --------------------------------------------------------------------------------------------- self-guidance


def test_self_guidance_follows_the_gradient_with_a_constant_reconstruction():
    """For a linear denoiser the gradient of |Ax - r| is A'(Ax - r) / |Ax - r|."""
    step = a_step(linear)
    clean = 0.5 * step.x_t
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(7))
    reconstruction = 0.5 * (0.6 * clean + 0.8 * noise)
    expected = clean - reconstruction
    expected = 0.4 * expected / largest(expected).view(-1, 1, 1, 1)
    assert torch.allclose(SelfGuidedMinority(0.4, seed=7)(step), expected, atol=1e-5)


def test_self_guidance_with_the_variance_of_the_step():
    step = a_step(linear)
    shift = SelfGuidedMinority(0.4, schedule="variance", seed=7)(step)
    assert torch.allclose(shift, 0.25 * SelfGuidedMinority(0.4, seed=7)(step))


# --------------------------------------------------------------------------------------- minority guidance


def two_clusters(n=200):
    """Samples near +1, which the denoiser below knows, and a few near -1, which it does not."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.where(torch.arange(n) < 0.9 * n, 1.0, -1.0).view(-1, 1, 1, 1)
    return centres + 0.05 * torch.randn(n, 1, 2, 2, generator=generator)


def knows_one(x, t):
    return torch.ones_like(x)


def test_minority_scores_are_reconstruction_errors():
    clean = two_clusters()
    scores = minority_scores(
        clean, knows_one, torch.linspace(0.99, 0.01, 100), timestep=90, draws=2, generator=torch.Generator()
    )
    expected = (clean - 1).flatten(1).norm(dim=1)
    assert torch.allclose(scores, expected, atol=1e-6)


def test_minority_guidance_moves_towards_what_the_generator_does_not_know():
    classifier = train_minority_classifier(
        two_clusters(), knows_one, torch.linspace(0.999, 0.01, 100), levels=10, timestep=90, steps=150
    )
    x = torch.zeros(2, 1, 2, 2)
    shift = MinorityGuidance(classifier, 0.5)(a_step(linear, x, t=torch.tensor(20)))
    assert (shift.mean(dim=(1, 2, 3)) < 0).all()
    assert torch.allclose(largest(shift), torch.full((2,), 0.5), atol=1e-5)
    again = train_minority_classifier(
        two_clusters(), knows_one, torch.linspace(0.999, 0.01, 100), levels=10, timestep=90, steps=150
    )
    for one, other in zip(classifier.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


# ------------------------------------------------------------------------------------- noise and condition


def test_boosted_noise_is_wider():
    noise = BoostAndSkip(3.0, skip=2).latents((4000, 1, 1, 1), torch.Generator().manual_seed(0))
    assert float(noise.std()) == pytest.approx(3.0, rel=0.05)


def test_cads_starts_as_noise_and_ends_as_the_condition():
    condition = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    cads = CADS(10, 1.0, tau1=0.4, tau2=0.8)
    assert [cads.share(i) for i in (0, 1, 2, 6, 9)] == pytest.approx([0, 0, 0, 1, 1])
    assert cads.share(4) == pytest.approx(0.5)
    assert cads(7, 100, condition) is condition
    first = cads(0, 900, condition)
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), condition.flatten()]))[0, 1])) < 0.5
    assert torch.equal(first, cads(0, 900, condition))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 50), st.floats(0.1, 2.0), st.integers(0, 10))
def test_cads_keeps_mean_and_deviation(num_steps, scale, seed):
    condition = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(seed)) + 1
    cads = CADS(num_steps, scale, seed=seed)
    shares = [cads.share(i) for i in range(num_steps)]
    assert shares == sorted(shares)
    noisy = cads(0, 999, condition)
    assert torch.allclose(noisy.mean(dim=(1, 2)), condition.mean(dim=(1, 2)), atol=1e-4)
    assert torch.allclose(noisy.std(dim=(1, 2)), condition.std(dim=(1, 2)), atol=1e-4)


def test_minority_prompt_moves_its_token_towards_larger_errors():
    prompt = MinorityPrompt(0.1, seed=0)
    embedding = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(1))

    def predict(x, t=None):
        tokens = prompt.condition(5, 500, embedding)
        return 0.1 * x + tokens.mean(dim=1).view(2, 1, 2, 2) * (1.0 if t is None else 0.3)

    step = a_step(predict, torch.randn(2, 1, 2, 2, generator=torch.Generator().manual_seed(0)))
    before = prompt.condition(0, 999, embedding)
    assert torch.allclose(before.mean(dim=1, keepdim=True), embedding)
    shift = prompt(step)
    assert not shift.any()
    after = prompt.condition(0, 999, embedding)
    assert torch.equal(after[:, 0], embedding[:, 0])
    moved = (after[:, 1] - before[:, 1]).norm(dim=1)
    assert torch.allclose(moved, 0.1 * before[:, 1].norm(dim=1), rtol=1e-4)
    # The error |clean - constant| grows along the clean image, which is along the token here.
    assert ((after[:, 1] - before[:, 1]) * predict(step.x_t).flatten(1)).sum() > 0


def test_minority_prompt_needs_its_condition():
    with pytest.raises(InputError, match="condition"):
        MinorityPrompt(0.1)(a_step(linear))


# ----------------------------------------------------------------------------------------------- in a sampler


class GaussianDenoiser(torch.nn.Module):
    """The exact velocity for data N(0, 0.25): the clean image is a multiple of the noisy one."""

    def __init__(self, scheduler):
        super().__init__()
        self.alpha_bars = scheduler.alphas_cumprod
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, t):
        alpha_bar = self.alpha_bars[torch.as_tensor(t).long()].view(-1, 1, 1, 1)
        clean = 0.25 * alpha_bar.sqrt() / (0.25 * alpha_bar + 1 - alpha_bar) * x
        return (alpha_bar.sqrt() * x - clean) / (1 - alpha_bar).sqrt()


@pytest.mark.parametrize("name", ["random", "self-guided", "neighbours", "minority"])
def test_guidances_run_in_the_sampler_and_change_the_images(name):
    scheduler = make_scheduler()
    config = JEPAGuidanceConfig(eta_total=1.0)
    eta = config.step_size(8)
    guidance = {
        "random": lambda: RandomDirection(eta),
        "self-guided": lambda: SelfGuidedMinority(eta),
        "neighbours": lambda: NeighbourGuidance(torch.full((5, 1, 2, 2), 0.5), eta),
        "minority": lambda: MinorityGuidance(MinorityClassifier(4), eta),
    }[name]()
    options = {"shape": (6, 1, 2, 2), "num_inference_steps": 8}
    plain, guided = (
        guided_sample(
            GaussianDenoiser(scheduler),
            scheduler,
            config=config,
            generator=torch.Generator().manual_seed(0),
            guidance=chosen,
            **options,
        )
        for chosen in (None, guidance)
    )
    assert guided.shape == plain.shape
    assert torch.isfinite(guided).all()
    assert float((guided - plain).abs().max()) > 0.01


@pytest.mark.parametrize(
    "call",
    [
        lambda: RandomDirection(-1),
        lambda: RandomDirection(math.nan),
        lambda: SelfGuidedMinority(0.1, timestep=0),
        lambda: SelfGuidedMinority(0.1, schedule="linear"),
        lambda: NeighbourGuidance(torch.zeros(2, 1, 2, 2), 0.1, k=5),
        lambda: MinorityClassifier(4, levels=1),
        lambda: train_minority_classifier(
            two_clusters(5), knows_one, torch.linspace(0.9, 0.1, 10), timestep=5
        ),
        lambda: BoostAndSkip(gamma=0),
        lambda: BoostAndSkip(skip=-1),
        lambda: CADS(10, -0.1),
        lambda: CADS(10, 0.1, tau1=0.9, tau2=0.6),
        lambda: CADS(10, 0.1, psi=2),
        lambda: MinorityPrompt(0.1, repeats=0),
    ],
)
def test_bad_values_are_refused(call):
    with pytest.raises(InputError):
        call()
