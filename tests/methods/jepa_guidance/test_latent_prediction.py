"""I-JEPA: masks, the predictor, what the context encoder cannot see, and the moving average."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.jepa_guidance.augmentations import PRESETS
from assay.methods.jepa_guidance.encoder_config import JEPAEncoderConfig
from assay.methods.jepa_guidance.encoder_model import JEPAEncoder, grid_positions, take_tokens
from assay.methods.jepa_guidance.latent_prediction import TARGETS, LatentPrediction, Predictor, block_masks


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def encoder(**changes):
    facts = {"arch": "vit", "image_size": 8, "num_channels": 1, "patch_size": 2, "width": 16, "depth": 2}
    facts |= {"hidden_size": 16, "projection": False} | changes
    return JEPAEncoder(JEPAEncoderConfig(**facts))


@settings(max_examples=40, deadline=None)
@given(grid=st.integers(4, 14), seed=st.integers(0, 2**32), batch=st.integers(1, 9))
def test_masks_are_blocks_and_context_is_apart_from_targets(grid, seed, batch):
    kept, asked = block_masks(batch, grid, seeded(seed))
    assert kept.shape[0] == batch
    assert 1 <= kept.shape[1] <= grid * grid
    assert asked.shape[:2] == (batch, TARGETS)
    for row in range(batch):
        seen = set(kept[row].tolist())
        assert len(seen) == kept.shape[1]
        # With one patch left the guarantee is only that there is one.
        if kept.shape[1] > 1:
            assert seen.isdisjoint(asked[row].flatten().tolist())
        for block in asked[row]:
            rows, columns = block // grid, block % grid
            height, width = (int(v.max() - v.min()) + 1 for v in (rows, columns))
            assert height * width == len(block.unique()) == asked.shape[2]


def test_target_blocks_have_the_area_and_aspect_of_the_paper():
    areas, sides = [], []
    for seed in range(200):
        _, asked = block_masks(1, 14, seeded(seed))
        block = asked[0, 0]
        height, width = int((block // 14).max() - (block // 14).min()) + 1, len((block % 14).unique())
        areas.append(height * width / 196)
        sides += [height, width]
    # Areas of 15 to 20% and aspects of 0.75 to 1.5, whose sides are rounded to whole patches.
    lowest, highest = 14 * (0.15 / 1.5) ** 0.5, 14 * (0.2 * 1.5) ** 0.5
    assert lowest - 0.5 <= min(sides) < max(sides) <= highest + 0.5
    assert 0.16 < sum(areas) / 200 < 0.19


def test_masks_repeat_for_a_seed_and_differ_between_images():
    first, again = block_masks(8, 8, seeded(3)), block_masks(8, 8, seeded(3))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({tuple(row.tolist()) for row in first[0]}) > 1


def test_a_grid_that_is_too_coarse_is_refused():
    with pytest.raises(InputError, match="smaller patches"):
        block_masks(2, 3, seeded())


def test_hidden_patches_do_not_reach_the_context_encoder():
    body = encoder().body
    kept, _ = block_masks(3, 4, seeded(1))
    pixels = torch.randn(3, 1, 8, 8, generator=seeded())
    changed = pixels.clone()
    for row in range(3):
        for patch in set(range(16)) - set(kept[row].tolist()):
            top, left = patch // 4 * 2, patch % 4 * 2
            changed[row, :, top : top + 2, left : left + 2] += 5
    torch.testing.assert_close(body.encode(pixels, kept), body.encode(changed, kept))
    assert not torch.allclose(body.encode(pixels), body.encode(changed))


def test_keeping_all_patches_is_the_whole_encoder():
    body = encoder().body
    pixels = torch.randn(2, 1, 8, 8, generator=seeded())
    everything = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(body.encode(pixels, everything), body.encode(pixels))


def test_take_tokens_picks_by_index():
    tokens = torch.arange(12.0).view(2, 3, 2)
    taken = take_tokens(tokens, torch.tensor([[2, 0], [1, 1]]))
    assert taken.tolist() == [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]
    assert take_tokens(tokens[:1], torch.tensor([[0], [1]])).tolist() == [[[0, 1]], [[2, 3]]]


@pytest.mark.parametrize("width", [16, 18, 3])
def test_positions_tell_places_apart(width):
    positions = grid_positions(4, width)
    assert positions.shape == (16, width)
    if width >= 8:
        assert torch.pdist(positions).min() > 0.1


def test_each_target_block_is_predicted_on_its_own():
    predictor = Predictor(16, 4, 4, 2)
    context = torch.randn(2, 5, 16, generator=seeded())
    kept, asked = torch.arange(5).expand(2, -1), torch.arange(12).view(1, 4, 3).expand(2, -1, -1).clone()
    whole = predictor(context, kept, asked)
    assert whole.shape == (2, 4, 3, 16)
    torch.testing.assert_close(predictor(context, kept, asked[:, 1:2]), whole[:, 1:2])


def test_gradients_reach_context_and_predictor_and_not_the_target():
    objective = LatentPrediction(encoder(), PRESETS["none"])
    loss = objective({"images": torch.rand(4, 1, 8, 8, generator=seeded())}, seeded())
    loss.backward()
    assert all(parameter.grad is None for parameter in objective.encoder.parameters())
    assert any(parameter.grad.abs().max() > 0 for parameter in objective.context.parameters())
    assert any(parameter.grad.abs().max() > 0 for parameter in objective.predictor.parameters())


def test_the_target_follows_by_its_momentum():
    objective = LatentPrediction(encoder(), PRESETS["none"])
    for parameter in objective.context.parameters():
        parameter.data += 1
    before = [parameter.clone() for parameter in objective.encoder.body.parameters()]
    objective.after_step(0.0)
    for old, new in zip(before, objective.encoder.body.parameters(), strict=True):
        torch.testing.assert_close(new - old, torch.full_like(old, 0.004), atol=1e-6, rtol=0)
    before = [parameter.clone() for parameter in objective.encoder.body.parameters()]
    objective.after_step(1.0)
    assert all(map(torch.equal, before, objective.encoder.body.parameters()))


def test_a_perfect_predictor_has_no_loss(monkeypatch):
    objective = LatentPrediction(encoder(), PRESETS["none"])
    images = torch.rand(4, 1, 8, 8, generator=seeded())
    tokens = objective.encoder(objective.encoder.normalise(images)).last_hidden_state
    answers = torch.nn.functional.layer_norm(tokens, (16,))

    def oracle(context, kept, asked):
        return take_tokens(answers, asked.flatten(1)).view(*asked.shape, -1)

    monkeypatch.setattr(objective.predictor, "forward", oracle)
    assert objective({"images": images}, seeded()) == pytest.approx(0, abs=1e-10)


def test_only_transformers_without_projection_are_trained():
    with pytest.raises(InputError, match="vit"):
        LatentPrediction(encoder(projection=True), PRESETS["none"])
    with pytest.raises(InputError, match="vit"):
        LatentPrediction(encoder(arch="conv", projection=True), PRESETS["none"])
