"""JEPA-SCORE against closed forms, invariances and an independent Jacobian."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import johnsonsu
from torch import Tensor, nn
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from assay.errors import InputError
from assay.methods.jepa_guidance import JEPAScorer
from assay.methods.jepa_guidance.jacobian import differentiable_encoder, full_jacobian
from assay.methods.jepa_guidance.randomised_svd import random_directions, surrogate_reference
from assay.methods.jepa_guidance.scorer import directions_seed


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int, size: int, channels: int = 1, seed: int = 1) -> Tensor:
    return torch.rand(batch, channels, size, size, dtype=torch.float64, generator=seeded(seed))


def grey(encoder: nn.Module, size: int, **options) -> JEPAScorer:
    return JEPAScorer(encoder.double(), mean=0.5, std=0.25, image_size=size, **options)


class Linear(nn.Module):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.matrix.T


class Elementwise(nn.Module):
    """f_i(x) = scale * softplus(x_i), mixed by an orthogonal matrix."""

    def __init__(self, mixing: Tensor | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.mixing = mixing
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        values = self.scale * nn.functional.softplus(x.flatten(1))
        return values if self.mixing is None else values @ self.mixing.T


class Gaussianising(nn.Module):
    """The inverse of z -> sinh(R z): it makes Johnson SU variables standard normal."""

    def __init__(self, mixing: Tensor) -> None:
        super().__init__()
        self.mixing = nn.Parameter(mixing)

    def forward(self, x: Tensor) -> Tensor:
        return torch.asinh(x.flatten(1)) @ self.mixing


def orthogonal(n: int, seed: int = 3) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=seeded(seed))).Q


def tiny_vit(dtype: torch.dtype = torch.float64) -> Dinov2WithRegistersModel:
    torch.manual_seed(0)
    config = Dinov2WithRegistersConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        mlp_ratio=2,
        image_size=16,
        patch_size=8,
        num_register_tokens=2,
    )
    model = Dinov2WithRegistersModel(config)
    # Untrained, the layers add almost nothing to their input.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype)


@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 4), width=st.integers(1, 20), seed=st.integers(0, 99))
def test_of_a_linear_map_it_is_the_log_volume_and_constant(size, width, seed):
    matrix = torch.randn(width, size * size, dtype=torch.float64, generator=seeded(seed))
    scores = grey(Linear(matrix), size).score(images(3, size, seed=seed))
    expected = np.log(np.maximum(np.linalg.svd(matrix.numpy(), compute_uv=False), 1e-6)).sum()
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_of_a_diagonal_map_score_and_gradient_have_a_closed_form():
    size, n = 3, 9
    scorer = grey(Elementwise(), size)
    batch = images(4, size)
    x = scorer.preprocess(batch).flatten(1)
    expected = nn.functional.logsigmoid(x).sum(dim=1)
    torch.testing.assert_close(scorer.score(batch), expected, rtol=1e-5, atol=1e-5)
    slope = (1 - torch.sigmoid(x)).view(4, 1, size, size)
    for method, k in (("exact", 1), ("rsvd", n)):
        found, _ = scorer.surrogate_gradient(scorer.preprocess(batch), k=k, oversample=0, method=method)
        torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.gradients, slope, rtol=1e-5, atol=1e-5)
    batch.requires_grad_()
    values = scorer.surrogate(batch, k=n, oversample=0)
    (gradient,) = torch.autograd.grad(values.sum(), batch)
    # The pixels are divided by the standard deviation first.
    torch.testing.assert_close(gradient, slope / 0.25, rtol=1e-5, atol=1e-5)


def test_of_a_gaussianising_map_it_is_the_density_by_change_of_variables():
    size, n = 3, 9
    encoder = Gaussianising(orthogonal(n))
    scorer = JEPAScorer(encoder, mean=0.5, std=0.1, image_size=size)
    x = torch.sinh(torch.randn(40, n, dtype=torch.float64, generator=seeded(4))).clamp(-5, 5)
    batch = (x * 0.1 + 0.5).view(-1, 1, size, size)
    embedding = scorer.embed(batch)
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(embedding).sum(dim=1)
    density = torch.tensor(johnsonsu.logpdf(x.numpy(), 0, 1).sum(axis=1))
    difference = scorer.score(batch) - density + normal
    torch.testing.assert_close(difference, torch.zeros_like(difference), rtol=0, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(scale=st.floats(0.1, 10), seed=st.integers(0, 99))
def test_a_rotation_changes_nothing_and_a_factor_adds_its_logarithm(scale, seed):
    batch = images(2, 2, seed=seed)
    plain = grey(Elementwise(), 2).score(batch)
    turned = grey(Elementwise(orthogonal(4, seed)), 2).score(batch)
    scaled = grey(Elementwise(scale=scale), 2).score(batch)
    torch.testing.assert_close(turned, plain)
    torch.testing.assert_close(scaled, plain + 4 * np.log(scale))


def test_of_a_vision_transformer_it_is_numpys_svd_of_finite_differences():
    scorer = JEPAScorer(tiny_vit(), mean=[0.5] * 3, std=[0.25] * 3, image_size=16)
    batch = images(1, 16, channels=3)
    z = scorer.preprocess(batch)
    step = 1e-5
    units = torch.eye(z.numel(), dtype=z.dtype).view(-1, *z.shape[1:])
    with torch.no_grad():
        differences = (scorer.encoder(z + step * units) - scorer.encoder(z - step * units)) / (2 * step)
    singular = np.linalg.svd(differences.numpy(), compute_uv=False)
    # The last layer norm makes the sum of the embedding constant: its singular value is 0.
    np.testing.assert_allclose(scorer.spectrum(batch)[0, :-1].numpy(), singular[:-1], rtol=1e-3)
    np.testing.assert_allclose(
        scorer.score(batch).item(), np.log(np.maximum(singular, 1e-6)).sum(), rtol=1e-3
    )


def test_of_a_vision_transformer_the_surrogate_is_the_reference_with_few_encoder_calls():
    scorer = JEPAScorer(tiny_vit(), mean=[0.5] * 3, std=[0.25] * 3, image_size=16)
    z = scorer.preprocess(images(2, 16, channels=3))
    calls = []
    scorer.encoder.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    found, repeated = scorer.surrogate_gradient(z, k=9, oversample=2, power_iters=2, seed=7, step=3)
    # All 11 directions of both samples in one forward pass that serves every product.
    assert calls == [22]
    assert repeated == 0
    directions = random_directions(11, z, seeded(directions_seed(7, 3, 0)))
    calls.clear()
    with differentiable_encoder():
        values, gradients = surrogate_reference(scorer.encoder, z, k=9, power_iters=2, directions=directions)
    assert len(calls) > 60
    torch.testing.assert_close(found.values, values, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.gradients, gradients, rtol=1e-7, atol=1e-9)


class Once(torch.autograd.Function):
    """A kernel that is differentiable once, like fused attention."""

    @staticmethod
    def forward(ctx, x):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


class Fused(nn.Module):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(x.flatten(1) @ self.matrix.T)  # pyright: ignore[reportReturnType]


def test_scoring_needs_no_second_derivative():
    matrix = torch.randn(6, 9, dtype=torch.float64, generator=seeded(5))
    scorer, batch = grey(Fused(matrix), 3), images(2, 3)
    with pytest.warns(UserWarning, match="using difference"):
        found = scorer.score(batch, "rsvd", k=4)
    leading = scorer.spectrum(batch)[:, :4].log().sum(dim=1)
    torch.testing.assert_close(found, leading, rtol=0, atol=0.05)


def test_the_chunk_changes_no_number():
    batch = images(5, 16, channels=3)
    results = []
    for chunk in (1, 7, None):
        scorer = JEPAScorer(tiny_vit(), mean=[0.5] * 3, std=[0.25] * 3, image_size=16, chunk=chunk)
        results.append((scorer.score(batch), scorer.score(batch, "rsvd"), scorer.embed(batch)))
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(found, expected)


def test_a_batch_mate_never_changes_a_score():
    scorer = JEPAScorer(tiny_vit(torch.float32), mean=[0.5] * 3, std=[0.25] * 3, image_size=16)
    batch = images(4, 16, channels=3).float()
    for method in ("exact", "rsvd"):
        together = scorer.score(batch, method)
        alone = torch.cat([scorer.score(batch[i : i + 1], method) for i in range(4)])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(
            scorer.score(batch.flip(0), method), together.flip(0), rtol=1e-4, atol=1e-3
        )


def test_auto_is_exact_for_small_encoders_only():
    small = grey(Elementwise(), 3)
    batch = images(2, 3)
    torch.testing.assert_close(small.score(batch, "auto"), small.score(batch))
    assert small.resolved_method("auto") == "exact"
    wide = grey(Linear(torch.ones(65, 9, dtype=torch.float64)), 3)
    assert wide.resolved_method("auto") == "rsvd"


def test_the_spectrum_of_an_encoder_wider_than_its_images():
    matrix = torch.randn(12, 4, dtype=torch.float64, generator=seeded(5))
    spectrum = grey(Linear(matrix), 2).spectrum(images(2, 2))
    torch.testing.assert_close(spectrum, torch.linalg.svdvals(matrix).expand(2, 4))


def test_the_error_bound_is_that_of_the_scores_themselves():
    scorer = JEPAScorer(tiny_vit(), mean=[0.5] * 3, std=[0.25] * 3, image_size=16)
    batch = images(2, 16, channels=3)
    bound = scorer.error_bound(batch, k=9, p=2, q=2)
    torch.testing.assert_close(bound.js, scorer.score(batch))
    z = scorer.preprocess(batch)
    jacobian = full_jacobian(scorer.encoder, z, copies=24)
    directions = random_directions(11, z, seeded(0))
    with differentiable_encoder():
        values, _ = surrogate_reference(scorer.encoder, z, k=9, power_iters=2, directions=directions)
    torch.testing.assert_close(bound.js_surrogate, values)
    torch.testing.assert_close(bound.js_top_k, torch.linalg.svdvals(jacobian)[:, :9].log().sum(dim=1))
    assert (bound.e_rsvd >= 0).all()
    assert (bound.e_trunc < 0).all()


def test_images_are_resized_repeated_and_normalised():
    scorer = JEPAScorer(nn.Flatten(), mean=[0.1, 0.2, 0.3], std=[1.0, 0.5, 0.25], image_size=4)
    batch = torch.full((2, 1, 8, 8), 0.6)
    seen = scorer.preprocess(batch)
    assert seen.shape == (2, 3, 4, 4)
    torch.testing.assert_close(seen[0, :, 0, 0], torch.tensor([0.5, 0.8, 1.2]))
    assert scorer.preprocess(batch, image_size=2).shape == (2, 3, 2, 2)
    ramp = torch.arange(16.0).view(1, 1, 4, 4) / 16
    found = JEPAScorer(nn.Flatten(), mean=0.0, std=1.0, image_size=2).preprocess(ramp)
    # Bilinear without antialiasing: the mean of the two inner rows and columns of each quarter.
    expected = ramp.unflatten(3, (2, 2)).mean(4).unflatten(2, (2, 2)).mean(3)
    torch.testing.assert_close(found, expected)


def test_the_encoder_is_frozen_in_evaluation_mode_and_full_precision():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5)).to(torch.bfloat16).train()
    scorer = JEPAScorer(encoder, mean=0.5, std=0.5, image_size=2)
    assert not encoder.training
    assert scorer.dtype == torch.float32
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_progress_is_reported_image_by_image():
    scorer = grey(Elementwise(), 2, chunk=2)
    for method in ("exact", "rsvd"):
        seen: list[int] = []
        scorer.score(images(5, 2), method, k=1, on_progress=seen.append)
        assert sum(seen) == 5
        assert len(seen) > 1


def test_the_direction_needs_a_reason():
    scorer = grey(Elementwise(), 2)
    with pytest.raises(InputError, match="not calibrated"):
        scorer.rare_sign()
    assert scorer.rare_sign(-1) == -1
    assert grey(Elementwise(), 2, published=True).rare_sign() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.5, 0.5], "std": [1.0]}, "a number for each channel"),
        ({"std": 0.0}, "above 0"),
        ({"chunk": 0}, "chunk is 0"),
        ({"image_size": 0}, "image_size is 0"),
        ({"pooling": "max"}, "pooling 'max'"),
    ],
)
def test_bad_settings_are_refused(options, message):
    settings = {"mean": 0.5, "std": 0.5, "image_size": 2} | options
    with pytest.raises(InputError, match=message):
        JEPAScorer(nn.Flatten(), **settings)


def test_a_size_that_does_not_fit_the_patches_names_the_nearest():
    model = tiny_vit()
    with pytest.raises(InputError, match=r"image_size 20 is not a multiple .* 8: use 16 or 24"):
        JEPAScorer(model, mean=[0.5] * 3, std=[0.5] * 3, image_size=20)
    with pytest.raises(InputError, match="use 8"):
        JEPAScorer(model, mean=[0.5] * 3, std=[0.5] * 3, image_size=5)
    scorer = JEPAScorer(model, mean=[0.5] * 3, std=[0.5] * 3, image_size=16)
    with pytest.raises(InputError, match="use 16 or 24"):
        scorer.preprocess(images(1, 16, 3), image_size=17)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(2, 2, 4, 4), "2 channels, the encoder takes 3"),
        (torch.zeros(3, 4, 4), "pass \\(batch, channels"),
        (torch.full((1, 3, 4, 4), 255.0), "scale them to \\[0, 1\\]"),
        (torch.full((1, 3, 4, 4), -1.0), "scale them to \\[0, 1\\]"),
        (torch.full((1, 3, 4, 4), torch.nan), "must be finite"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), "uint8 must be finite"),
        (torch.zeros(0, 3, 4, 4), "no images"),
    ],
)
def test_bad_images_are_refused(batch, message):
    scorer = JEPAScorer(nn.Flatten(), mean=[0.5] * 3, std=[0.5] * 3, image_size=4)
    with pytest.raises(InputError, match=message):
        scorer.score(batch)
    with pytest.raises(InputError, match=message):
        scorer.embed(batch)


def test_bad_arguments_of_a_score_are_refused():
    scorer = grey(Elementwise(), 2)
    with pytest.raises(InputError, match="method is 'fast'"):
        scorer.score(images(1, 2), "fast")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="more than the 4 singular values"):
        scorer.score(images(1, 2), "rsvd")
