"""The short path of the margin against full forward passes, and its gradient against differences."""

import copy

import pytest
import torch

from assay.errors import InputError
from assay.methods.crh import ConceptMargin, ConceptPairs, extract_differences, fit_cylinder, sector_map
from assay.methods.crh.margin import KEPT

FAMILIES = ("llama", "qwen2", "gemma", "gpt2")


def vectors(rows, seed=0):
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("position", ["output", "all", "prompt", "last_prompt"])
def test_the_short_path_is_the_full_forward_pass(models_by_family, tokenizer, pairs, family, position, hooks):
    model = models_by_family[family]
    margin = ConceptMargin(model, tokenizer, pairs, 1, position=position, template="crh")
    assert margin.path == "suffix"
    full = ConceptMargin(model, tokenizer, pairs, 1, position=position, template="crh", path="full")
    for i in (0, 7):
        expected = margin.reference(i, vectors(6))
        torch.testing.assert_close(margin(i, vectors(6)), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(full(i, vectors(6)), expected, rtol=0, atol=1e-4)
    assert float(expected.std()) > 0.01
    assert hooks(model) == 0


def test_forty_rows_are_forty_calls(model, tokenizer, pairs):
    margin = ConceptMargin(model, tokenizer, pairs, 2)
    rows = vectors(40)
    one_by_one = torch.stack([margin(3, row) for row in rows])
    torch.testing.assert_close(margin(3, rows), one_by_one, rtol=0, atol=1e-4)
    split = ConceptMargin(model, tokenizer, pairs, 2, max_logits=2 * 6 * 260 * 7)
    torch.testing.assert_close(split(3, rows), one_by_one, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_the_slope(models_by_family, tokenizer, pairs, family):
    model = copy.deepcopy(models_by_family[family]).double()
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    point = vectors(1)[0] * 2
    gradient = margin.grad(0, point)
    assert gradient.shape == (32,)
    step = 1e-2 * float(point.norm())
    for direction in vectors(5, seed=9):
        direction = direction / direction.norm()
        ends = margin(0, torch.stack([point + step * direction, point - step * direction]))
        slope = float(ends[0] - ends[1]) / (2 * step)
        expected = float(gradient @ direction)
        # Relative to the whole gradient: a direction may be almost orthogonal to it.
        assert abs(slope - expected) < 0.02 * float(gradient.norm())
    both = margin.grad(0, torch.stack([point, -point]))
    torch.testing.assert_close(both[0], gradient, rtol=1e-4, atol=1e-6)


def test_what_both_responses_begin_with_is_not_counted(model, tokenizer, pairs):
    first = pairs[0]
    shared = type(first)(first.question, "dogs", "Sure, it is red.", "Sure, dogs run.")
    bare = type(first)(first.question + "\n[x] Sure,", "dogs", " it is red.", " dogs run.")
    margin = ConceptMargin(model, tokenizer, ConceptPairs((shared,)), 1, m_tokens=3)
    sample = margin._sample(0)
    assert sample.scored.sum(dim=1).tolist() == [3, 3]
    assert tokenizer.decode(sample.targets[0]) == "dog"
    assert tokenizer.decode(sample.targets[1]) == "it "
    torch.testing.assert_close(margin(0, vectors(2)), margin.reference(0, vectors(2)), rtol=0, atol=1e-4)
    # One response may begin the other: a token of each is left.
    nested = type(first)(first.question, "dogs", "Dogs", "Dogs run.")
    inner = ConceptMargin(model, tokenizer, ConceptPairs((nested, bare)), 1)
    torch.testing.assert_close(inner(0, vectors(2)), inner.reference(0, vectors(2)), rtol=0, atol=1e-4)


def test_only_a_few_samples_are_kept(model, tokenizer, pairs):
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    for i in range(8):
        margin(i, vectors(1))
    assert len(margin._samples) == KEPT
    assert len(margin) == 12


def test_a_family_that_cannot_start_in_the_middle_takes_full_passes(model, tokenizer, pairs, hooks):
    odd = copy.deepcopy(model)
    plain = odd.model.layers[2].forward

    def depends_on_depth(hidden, *arguments, **keywords):
        # What a block below adds outside the residual stream is lost when that block is skipped.
        return plain(hidden, *arguments, **keywords) + odd.model.layers[0].seen

    def remember(module, arguments, output):
        module.seen = output[:, :1].mean(dim=-1, keepdim=True)

    odd.model.layers[0].seen = 0.0
    odd.model.layers[0].register_forward_hook(remember)
    odd.model.layers[2].forward = depends_on_depth
    before = hooks(odd)
    margin = ConceptMargin(odd, tokenizer, pairs, 1)
    assert margin.path == "full"
    torch.testing.assert_close(margin(0, vectors(3)), margin.reference(0, vectors(3)), rtol=0, atol=1e-4)
    assert hooks(odd) == before


def test_forwards_are_put_back_after_an_error(model, tokenizer, pairs, hooks):
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    margin(0, vectors(1))
    handle = model.model.norm.register_forward_hook(lambda *a: (_ for _ in ()).throw(RuntimeError("mine")))
    with pytest.raises(RuntimeError, match="mine"):
        margin(0, vectors(1))
    handle.remove()
    assert hooks(model) == 0


def test_a_map_on_a_model(model, tokenizer, pairs):
    differences = extract_differences(model, tokenizer, pairs, [1])
    cylinder = fit_cylinder(differences.subset(range(8)))
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    found = sector_map(margin, cylinder, 9, difference=differences.differences(1)[9])
    frame = cylinder.frame(differences.differences(1)[9])
    direction = cylinder.sector_directions(frame, found.tilt, torch.tensor(found.angles[3:4]))[0]
    expected = margin.reference(9, found.strengths[2] * direction)
    assert found.margins[3, 2] == pytest.approx(float(expected), abs=1e-4)
    assert found.oracle
    assert not sector_map(margin, cylinder, 9).oracle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m_tokens": 0}, "m_tokens"),
        ({"position": "some"}, "position"),
        ({"path": "short"}, "path"),
        ({"layer": 9}, "layer 9"),
    ],
)
def test_bad_margins(model, tokenizer, pairs, options, message):
    with pytest.raises(InputError, match=message):
        ConceptMargin(model, tokenizer, pairs, **({"layer": 1} | options))


def test_bad_calls(model, tokenizer, pairs):
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    for i, shift, message in [
        (12, vectors(1), "samples 0 to 11"),
        (0, torch.zeros(31), "width 32"),
        (0, torch.zeros(0, 32), "no vectors"),
        (0, torch.full((32,), torch.inf), "NaN or infinite"),
    ]:
        with pytest.raises(InputError, match=message):
            margin(i, shift)
