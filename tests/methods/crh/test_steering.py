"""Steering against blocks run by hand, at every position, with caches, padding, families and devices."""

import numpy as np
import pytest
import torch
from accelerate import dispatch_model

from assay.errors import InputError
from assay.lm import capture
from assay.methods.crh import angular_steer, instructed, replies, rotation_plane, steer
from assay.methods.crh.blocks import find_decoder

FAMILIES = ("llama", "qwen2", "gemma", "gpt2")
EVERY = pytest.mark.parametrize("family", FAMILIES)
LAYER = 1


def tokens(rows=2, length=9, seed=0):
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def vectors(*shape, seed=1):
    return torch.randn(*shape, 32, generator=torch.Generator().manual_seed(seed))


def states(model, ids, **options):
    path = f"{find_decoder(model).path}.{LAYER}"
    with torch.no_grad(), capture(model, path) as captured:
        model(ids, **options)
    return captured[path]


@EVERY
def test_a_zero_vector_changes_nothing(models_by_family, family):
    model = models_by_family[family]
    with torch.no_grad():
        plain = model(tokens()).logits
        with steer(model, torch.zeros(32), LAYER):
            steered = model(tokens()).logits
    assert torch.equal(plain, steered)


@EVERY
def test_steering_is_adding_to_the_hidden_state_and_running_the_other_blocks(models_by_family, family, hooks):
    # By hand: the blocks above are a model of their own when those below hand the wanted state on.
    model, vector = models_by_family[family], vectors()
    decoder = find_decoder(model)
    with torch.no_grad():
        hidden = model(tokens(), output_hidden_states=True).hidden_states[LAYER + 1]
        with steer(model, vector, LAYER):
            steered = model(tokens()).logits
        handle = decoder.blocks[LAYER + 1].register_forward_pre_hook(
            lambda module, arguments, keywords: ((hidden + vector, *arguments[1:]), keywords),
            with_kwargs=True,
        )
        by_hand = model(tokens()).logits
        handle.remove()
    torch.testing.assert_close(steered, by_hand, rtol=0, atol=1e-4)
    assert hooks(model) == 0


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_positions(models_by_family, family):
    model, vector = models_by_family[family], vectors()
    ids, n = tokens(), 5
    plain = states(model, ids)[0]
    index = torch.arange(9)
    for position, chosen in {
        "all": index >= 0, "prompt": index < n, "last_prompt": index == n - 1, "output": index >= n - 1,
    }.items():  # fmt: skip
        with steer(model, vector, LAYER, position=position, prompt_lengths=n):
            changed = states(model, ids)[0]
        torch.testing.assert_close(
            changed - plain, (chosen[None, :, None] * vector).expand(2, 9, 32), rtol=0, atol=1e-5
        )
    with torch.no_grad():
        before = model(ids).logits
        with steer(model, vector, LAYER, position="last_prompt", prompt_lengths=n):
            assert torch.equal(model(ids).logits[:, : n - 1], before[:, : n - 1])


@EVERY
def test_generated_tokens_get_the_vector_where_they_should(models_by_family, family):
    model, vector, ids = models_by_family[family], vectors(), tokens()
    path = f"{find_decoder(model).path}.{LAYER}"
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 259}
    for position, prompt, later in [
        ("all", "every", True), ("prompt", "every", False),
        ("last_prompt", "last", False), ("output", "last", True),
    ]:  # fmt: skip
        # `before` reads the block's output ahead of the vector, `after` behind it.
        with (
            capture(model, path) as before,
            steer(model, vector, LAYER, position=position),
            capture(model, path) as after,
        ):
            model.generate(ids, **options)
        shifts = [b - a for a, b in zip(before[path], after[path], strict=True)]
        assert [s.shape[1] for s in shifts] == [9, 1, 1]
        steered = [(s.norm(dim=-1) > 1e-3) for s in shifts]
        expected = torch.ones(2, 9, dtype=torch.bool)
        if prompt == "last":
            expected[:, :-1] = False
        assert torch.equal(steered[0], expected)
        assert all(bool(s.all()) == later and bool(s.any()) == later for s in steered[1:])


@EVERY
def test_a_left_padded_batch_is_its_rows_alone(models_by_family, family, tokenizer):
    model = models_by_family[family]
    questions, steered = ["Hi?", "A much longer question?", "Who is it?"], vectors(3) * 2
    for position in ("all", "last_prompt", "output"):
        with steer(model, steered, LAYER, position=position):
            together = replies(model, tokenizer, questions, max_new_tokens=4)
        alone = []
        for question, vector in zip(questions, steered, strict=True):
            with steer(model, vector, LAYER, position=position):
                alone += replies(model, tokenizer, [question], max_new_tokens=4)
        assert together == alone


def test_padding_is_never_steered(model):
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    options = {"attention_mask": mask, "position_ids": positions}
    plain = states(model, ids, **options)[0]
    with steer(model, vectors(2), LAYER):
        changed = states(model, ids, **options)[0]
    assert torch.equal(((changed - plain).norm(dim=-1) > 1e-3), mask.bool())
    with steer(model, vectors(), LAYER, position="output", prompt_lengths=[2, 5]):
        changed = states(model, ids, **options)[0]
    expected = mask.bool() & (positions >= torch.tensor([[1], [4]]))
    assert torch.equal(((changed - plain).norm(dim=-1) > 1e-3), expected)


def test_generation_without_a_cache(model):
    ids, vector = tokens(), vectors()
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 259}
    for position in ("all", "prompt", "output"):
        with steer(model, vector, LAYER, position=position, prompt_lengths=9):
            cached = model.generate(ids, **options)
            again = model.generate(ids, use_cache=False, **options)
        assert torch.equal(cached, again)


def test_rows_have_their_own_vectors(model):
    own = vectors(2)
    with torch.no_grad():
        with steer(model, own, LAYER):
            together = model(tokens()).logits
        for row in range(2):
            with steer(model, own[row], LAYER):
                torch.testing.assert_close(
                    model(tokens()[row : row + 1]).logits[0], together[row], rtol=0, atol=1e-4
                )


def test_gradients_reach_the_vector(model):
    vector = torch.zeros(32, requires_grad=True)
    with steer(model, vector, LAYER):
        model(tokens()).logits[0, -1, 3].backward()
    assert vector.grad.norm() > 0


def test_a_model_spread_over_devices(models_by_family, tmp_path, hooks):
    import copy

    model = copy.deepcopy(models_by_family["llama"])
    with torch.no_grad(), steer(model, vectors(), LAYER):
        expected = model(tokens()).logits
    places = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{i}": "disk" if i < 2 else "cpu" for i in range(4)}
    spread = dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path))
    before = hooks(spread)
    with torch.no_grad(), steer(spread, vectors(), LAYER):
        torch.testing.assert_close(spread(tokens()).logits, expected, rtol=0, atol=1e-6)
    assert hooks(spread) == before


def test_hooks_are_removed_after_an_error(model, hooks):
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="mine"), steer(model, vectors(), LAYER):
        model(tokens())
        raise RuntimeError("mine")
    assert hooks(model) == 0
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectors": torch.zeros(31)}, r"\(31,\) do not fit a model of width 32"),
        ({"vectors": torch.zeros(2, 2, 32)}, "do not fit"),
        ({"vectors": torch.full((32,), torch.nan)}, "NaN"),
        ({"layer": 4}, "layer 4 does not exist; the model has layers 0 to 3"),
        ({"layer": -1}, "layer -1 does not exist"),
        ({"position": "first"}, "use one of all, prompt"),
        ({"module_path": "model.blocks"}, "model.layers"),
    ],
)
def test_bad_input(model, arguments, message, hooks):
    settings = {"model": model, "vectors": torch.zeros(32), "layer": 1} | arguments
    with pytest.raises(InputError, match=message), steer(**settings):
        pass
    assert hooks(model) == 0


def test_rows_that_do_not_fit(model, hooks):
    with pytest.raises(InputError, match="3 vectors for a batch of 2"), steer(model, vectors(3), LAYER):
        model(tokens())
    assert hooks(model) == 0


def test_models_that_cannot_be_steered(model):
    from types import SimpleNamespace

    class Odd(torch.nn.Module):
        config = SimpleNamespace(is_encoder_decoder=True)

    with pytest.raises(InputError, match="encoder-decoder"):
        find_decoder(Odd())
    Odd.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=3))
    with pytest.raises(InputError, match="supported layouts"):
        find_decoder(Odd())
    assert find_decoder(model, "model.layers").path == "model.layers"
    assert find_decoder(model).default_layers() == (2, 3)


def test_an_angle_is_reached_and_lengths_are_kept(model):
    rows = torch.randn(6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 1
    plane = torch.stack(rotation_plane(rows))
    plain = states(model, tokens())[0].double()
    with angular_steer(model, plane, 30.0, LAYER):
        turned = states(model, tokens())[0].double()
    inside, before = turned @ plane.T, plain @ plane.T
    torch.testing.assert_close(inside.norm(dim=-1), before.norm(dim=-1), rtol=1e-5, atol=1e-5)
    angles = torch.atan2(inside[..., 1], inside[..., 0])
    torch.testing.assert_close(angles, torch.full_like(angles, np.radians(30)), rtol=0, atol=1e-4)
    torch.testing.assert_close(turned.norm(dim=-1), plain.norm(dim=-1), rtol=1e-5, atol=1e-5)
    with angular_steer(model, plane, 30.0, LAYER, adaptive=True):
        some = states(model, tokens())[0].double()
    moved = (some - plain).norm(dim=-1) > 1e-4
    assert torch.equal(moved, before[..., 0] > 0)
    for wrong in (plane * 2, plane[:, :5]):
        with pytest.raises(InputError), angular_steer(model, wrong, 30.0, LAYER):
            pass
    with pytest.raises(InputError, match="one line"):
        rotation_plane(torch.ones(4, 3))
    assert instructed("Q?", "Do so.").startswith("Q?")
