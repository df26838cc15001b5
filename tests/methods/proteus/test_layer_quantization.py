"""One layer from weights to packed codes: what it decodes to, what it depends on, and its faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import assay.lm as lm
from assay.cache import cached
from assay.errors import InputError
from assay.methods.proteus.baselines import gptq, ldlq_scalar, rtn
from assay.methods.proteus.codes import mulbal
from assay.methods.proteus.compensation import proxy_error
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.hessian import SecondMoment, walk_blocks
from assay.methods.proteus.incoherence import Rotation, padded, signs, transform_for
from assay.methods.proteus.instantiate import SCALES, choose, fit, sample_tiles
from assay.methods.proteus.layer_quantization import (
    LayerSettings,
    check_weight,
    dequantize,
    encode_with_feedback,
    prepare_inputs,
    quantize_layer,
)
from assay.methods.proteus.ldlq import block_ldl, from_sequences, to_sequences
from assay.methods.proteus.pool import pool
from assay.methods.proteus.trellis import Trellis, unpack
from assay.methods.proteus.viterbi import encode_tiles

QUICK = LayerSettings(window=6, pool=(Generator(0x9E3779B1, shift=15), Generator(0x849988CF)))


def weight_of(m: int, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = 0.05 * torch.randn(m, n, generator=generator)
    weight[:, 3 % n] *= 8
    return weight


def second_moment(n: int, seed: int = 0, tokens: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens or 4 * n, n, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-0.7, 0.7, n, dtype=torch.float64) + x[:, :1]
    return x.T @ x / len(x)


# --- what a layer decodes to


@pytest.mark.parametrize(("m", "n"), [(64, 96), (40, 50), (33, 176)])
def test_layer_is_what_the_forward_pass_computes(m, n):
    layer, report = quantize_layer(weight_of(m, n), second_moment(n), name="up", settings=QUICK)
    assert layer.shape == report.shape == (m, n)
    assert layer.padding == (padded(m) - m, padded(n) - n)
    assert layer.qweight.shape == (padded(m) // 16, padded(n) // 16, 64)
    assert layer.qweight.dtype == torch.uint8
    assert layer.affine.dtype == torch.float32
    assert layer.su.dtype == layer.sv.dtype == torch.float16
    # From the packed bits, with the formula of the layer and nothing of the module's own.
    states = unpack(layer.qweight.flatten(0, 1), QUICK.trellis)
    codes = from_sequences(
        Generator.from_record(layer.record).raw(states).reshape(*layer.qweight.shape[:2], -1)
    )
    x = torch.randn(5, n, generator=torch.Generator().manual_seed(1))
    mixed = torch.zeros(5, padded(n))
    mixed[:, :n] = x * layer.su.float()
    mixed = mixed @ layer.input_transform.dense(torch.float32).T
    alpha, beta = layer.affine.tolist()
    product = alpha * mixed @ codes.float().T + beta * mixed.sum(1, keepdim=True)
    product = (product @ layer.output_transform.dense(torch.float32))[:, :m] * layer.sv.float()
    decoded = dequantize(layer, QUICK.window, QUICK.bits)
    torch.testing.assert_close(x @ decoded.T, product, rtol=1e-4, atol=1e-5)
    metric = prepare_inputs(second_moment(n), group="up", settings=QUICK).hessian
    assert proxy_error(weight_of(m, n), decoded, metric) == pytest.approx(
        report.proxy_error_compensated, rel=1e-4
    )
    assert report.proxy_error_compensated <= report.proxy_error < 0.2
    assert (report.alpha, report.beta) == (alpha, beta)


def test_bits_per_weight_count_everything():
    layer, report = quantize_layer(weight_of(64, 96), second_moment(96), name="up", settings=QUICK)
    assert layer.bits_per_weight == pytest.approx(2 + (16 * (64 + 96) + 8 * 32 + 2 * 32) / (64 * 96))
    assert report.bits_per_weight == layer.bits_per_weight
    rotated, _ = quantize_layer(
        weight_of(64, 96), second_moment(96), name="up", settings=replace(QUICK, rht="orthogonal")
    )
    assert rotated.input_transform.matrix is not None
    extra = 32 * (3 * 3 + 1) / (64 * 96)
    assert rotated.bits_per_weight == pytest.approx(layer.bits_per_weight + extra)


@pytest.mark.parametrize("bits", [3, 4])
def test_more_bits_lower_the_error(bits):
    weight, hessian = weight_of(64, 64), second_moment(64)
    errors = [
        quantize_layer(weight, hessian, name="a", settings=replace(QUICK, window=8, bits=b))[1].proxy_error
        for b in (bits - 1, bits)
    ]
    # A bit is worth 6 dB, a factor of 4, at high resolution.
    assert errors[1] < errors[0] / 2.5


def test_default_pool_is_the_one_of_the_window():
    layer, report = quantize_layer(
        weight_of(32, 48), second_moment(48), name="a", settings=LayerSettings(window=8)
    )
    candidates = pool(8, 2)
    assert 0 <= report.candidate < len(candidates)
    assert Generator.from_record(layer.record) == candidates[report.candidate]
    assert int(layer.record[4]) == report.candidate


def test_large_windows_are_searched_at_twelve_bits_and_confirmed(monkeypatch):
    windows = []

    def recording(x, values, trellis, *, threads=None):
        windows.append((trellis.window, len(x)))
        return encode_tiles(x, values, trellis, threads=threads)

    settings = replace(QUICK, window=13)
    quantize_layer(weight_of(32, 32), second_moment(32), name="a", settings=settings, encode=recording)
    searched = len(QUICK.pool or ()) + 2 * (len(SCALES) - 1)
    # Four tiles are the sample; then two block columns of two tiles each.
    assert windows == [(12, 4)] * searched + [(13, 4)] * 2 + [(13, 2)] * 2


# --- what it depends on


def test_result_depends_on_neither_threads_nor_encoder_nor_order():
    weight, hessian = weight_of(64, 64), second_moment(64)
    first, _ = quantize_layer(weight, hessian, name="a", group="g", settings=QUICK, threads=1)
    quantize_layer(weight_of(32, 32, 5), second_moment(32), name="b", settings=QUICK)

    def one_by_one(x, values, trellis, *, threads=None):
        return torch.cat([encode_tiles(part, values, trellis, threads=1) for part in x.split(1)])

    prepared = prepare_inputs(hessian, group="g", settings=QUICK)
    for inputs, threads, encode in (
        (hessian, 2, encode_tiles),
        (hessian, 1, one_by_one),
        (prepared, 1, encode_tiles),
    ):
        again, _ = quantize_layer(
            weight, inputs, name="a", group="g", settings=QUICK, threads=threads, encode=encode
        )
        for field in ("qweight", "record", "affine", "su", "sv"):
            assert torch.equal(getattr(again, field), getattr(first, field)), field


def test_signs_come_from_the_group_and_from_the_name():
    weight, hessian = weight_of(32, 48), second_moment(48)
    plain = replace(QUICK, compensate=False, seed=7)
    for name in ("q", "k"):
        layer, _ = quantize_layer(weight, hessian, name=name, group="q", settings=plain)
        assert torch.equal(layer.su.float(), signs(48, seed=7, name="q", side="input"))
        assert torch.equal(layer.sv.float(), signs(32, seed=7, name=name, side="output"))


def test_compensation_leaves_the_packed_bits_alone():
    weight, hessian = weight_of(64, 96), second_moment(96)
    plain, before = quantize_layer(weight, hessian, name="a", settings=replace(QUICK, compensate=False))
    repaired, after = quantize_layer(weight, hessian, name="a", settings=QUICK)
    assert plain.qweight.numpy().tobytes() == repaired.qweight.numpy().tobytes()
    assert torch.equal(plain.record, repaired.record)
    assert after.proxy_error == before.proxy_error == before.proxy_error_compensated
    assert after.proxy_error_compensated < 0.99 * before.proxy_error


def test_without_correlations_feedback_does_nothing():
    x = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    values = mulbal(Generator(0x849988CF), 6).values
    trellis = Trellis(window=6)
    feedback = block_ldl(torch.eye(64), 0.01)
    states = encode_with_feedback(x, feedback, values, trellis, encode_tiles)
    plain = encode_tiles(to_sequences(x).flatten(0, 1), values, trellis, threads=1)
    assert torch.equal(states.flatten(0, 1), plain)


def test_errors_in_padded_channels_cost_nothing():
    # 33 channels are padded to 48: the error may be moved into the fifteen that do not exist.
    hessian = second_moment(48)[:33, :33].contiguous()
    ragged = quantize_layer(weight_of(64, 48)[:, :33], hessian, name="a", settings=QUICK)[1]
    even = quantize_layer(weight_of(64, 48)[:, :32], hessian[:32, :32], name="a", settings=QUICK)[1]
    assert ragged.proxy_error_compensated < even.proxy_error_compensated


def test_scales_beyond_half_precision_are_kept_in_float32():
    weight = weight_of(32, 32)
    weight[4] = 0
    layer, _ = quantize_layer(weight * 1e-9, second_moment(32), name="a", settings=QUICK)
    decoded = dequantize(layer, QUICK.window, QUICK.bits)
    assert torch.isfinite(decoded).all()
    assert proxy_error(weight, decoded * 1e9, second_moment(32).float()) < 0.2


# --- choosing a code


def test_sample_is_half_loud_half_random():
    weights = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    weights[:16, :64] *= 5
    importance = torch.rand(256, generator=torch.Generator().manual_seed(1)) + 0.5
    sample = sample_tiles(weights, importance, seed=0, name="a")
    tiles = to_sequences(weights).flatten(0, 1)
    assert sample.tiles.shape == (64, 256)
    energy = tiles.square().sum(1).sort(descending=True).values
    assert torch.equal(sample.tiles[:32].square().sum(1).sort(descending=True).values, energy[:32])
    assert len({tuple(tile.tolist()) for tile in sample.tiles}) == 64
    costs = to_sequences((importance / importance.mean()).expand(256, 256)).flatten(0, 1)
    place = int((tiles == sample.tiles[-1]).all(1).nonzero())
    assert torch.equal(sample.importance[-1], costs[place])
    other = sample_tiles(weights, importance, seed=0, name="b")
    assert torch.equal(other.tiles[:32], sample.tiles[:32])
    assert not torch.equal(other.tiles[32:], sample.tiles[32:])


def test_small_matrices_are_sampled_whole():
    weights = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    sample = sample_tiles(weights, torch.ones(48), seed=0, name="a")
    assert sorted(map(tuple, sample.tiles.tolist())) == sorted(
        map(tuple, to_sequences(weights).flatten(0, 1).tolist())
    )


def test_fit_is_least_squares():
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) + 0.1
    sample = sample_tiles(weights, torch.ones(64), seed=0, name="a")
    values = mulbal(Generator(0x9E3779B1), 6).values
    trellis = Trellis(window=6)
    choice = fit(sample, 3, values, 1.06, trellis, encode_tiles)
    decoded = values[encode_tiles(sample.tiles, 1.06 * values, trellis)]
    slope, constant = np.polyfit(decoded.flatten().double(), sample.tiles.flatten().double(), 1)
    assert (choice.candidate, choice.scale) == (3, 1.06)
    assert (choice.gain, choice.offset) == pytest.approx((slope, constant), rel=1e-6)
    error = (sample.tiles - slope * decoded - constant).square().mean()
    assert choice.error == pytest.approx(float(error), rel=1e-5)


def test_the_better_code_is_chosen():
    weights = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    sample = sample_tiles(weights, torch.ones(128), seed=0, name="a")
    good = mulbal(Generator(0x849988CF), 6).values
    # Without mixing, successive states are nearly equal: a bad code of the same marginal.
    bad = mulbal(Generator(1, shift=0, signs=(1, 1, 1, 1)), 6).values
    best = choose(sample, [bad, good, good], Trellis(window=6), encode_tiles)
    assert [choice.candidate for choice in best] == [1, 2]
    assert best[0].error == best[1].error
    assert best[0].scale in SCALES


# --- faults


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(64), r"shape \(64,\); only matrices"),
        (torch.ones(16, 64), "is 16 x 64; layers smaller than 32 x 32"),
        (torch.ones(64, 31), "is 64 x 31"),
    ],
)
def test_weights_that_cannot_be_quantized_are_refused(weight, message):
    with pytest.raises(InputError, match=message):
        check_weight("model.layers.0.mlp.up_proj", weight)


def test_damaged_weights_are_counted():
    weight = weight_of(32, 32)
    weight[0, :2] = torch.nan
    weight[5, 5] = -torch.inf
    with pytest.raises(InputError, match=r"weight of model\.up has 3 NaN or infinite entries"):
        quantize_layer(weight, second_moment(32), name="model.up", settings=QUICK)


def test_damaged_second_moments_are_refused():
    hessian = second_moment(32)
    hessian[3, 3] = torch.inf
    with pytest.raises(InputError, match=r"inputs of model\.up is not finite"):
        quantize_layer(weight_of(32, 32), hessian, name="model.up", settings=QUICK)
    with pytest.raises(InputError, match="has 48 channels, its weight 32"):
        quantize_layer(weight_of(32, 32), second_moment(48), name="model.up", settings=QUICK)
    with pytest.raises(InputError, match="must be square"):
        quantize_layer(weight_of(32, 32), torch.ones(32, 48), name="model.up", settings=QUICK)


def test_zero_second_moment_quantizes_without_feedback():
    report = quantize_layer(weight_of(32, 64), torch.zeros(64, 64), name="a", settings=QUICK)[1]
    assert "is zero: rounded without feedback" in report.flags[0]
    assert report.proxy_error < 0.2


def test_zero_weights_stay_zero():
    layer, report = quantize_layer(torch.zeros(32, 64), second_moment(64), name="a", settings=QUICK)
    assert float(dequantize(layer, QUICK.window, QUICK.bits).abs().max()) == 0
    assert report.proxy_error_compensated == 0


def test_bias_correction_keeps_the_mean_output():
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)) + 0.5
    moment = SecondMoment("a", 64)
    moment.add(x)
    weight = weight_of(32, 64)
    layer, _ = quantize_layer(weight, moment, name="a", settings=replace(QUICK, correct_bias=True))
    plain, _ = quantize_layer(weight, moment, name="a", settings=QUICK)
    assert plain.bias_correction is None
    assert layer.bias_correction is not None
    decoded = dequantize(layer, QUICK.window, QUICK.bits)
    assert torch.equal(decoded, dequantize(plain, QUICK.window, QUICK.bits))
    before, after = (x @ (decoded - weight).T, x @ (decoded - weight).T + layer.bias_correction)
    assert float(after.mean(0).abs().max()) < 1e-5 < 1e-3 < float(before.mean(0).abs().max())
    assert float(after.square().mean()) < float(before.square().mean())
    with pytest.raises(InputError, match=r"bias of a cannot be corrected without E\[x\]"):
        quantize_layer(weight, moment.hessian, name="a", settings=replace(QUICK, correct_bias=True))


def test_few_tokens_are_flagged_and_still_quantized():
    moment = SecondMoment("a", 64)
    moment.add(torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))
    _, report = quantize_layer(weight_of(32, 64), moment, name="a", settings=QUICK)
    assert report.flags == ("10 tokens for 64 channels of a: at least 256 are recommended",)
    assert report.proxy_error < 0.1


# --- a real layer


REAL = "model.layers.3.self_attn.q_proj"


@pytest.fixture(scope="module")
def real_layer() -> dict[str, torch.Tensor]:
    """A weight of SmolLM2, and second moments of its inputs on text to calibrate and to score on."""

    def build(folder: Path) -> None:
        model, tokenizer = lm.load("embedded", device="cpu", dtype="float32")
        texts = lm.text("python-docs")
        arrays = {"weight": model.get_submodule(REAL).weight.detach().numpy()}
        for kind, content in (("calibration", texts.calibration), ("evaluation", texts.evaluation)):
            batches = lm.calibration_batches(tokenizer, content, 512, 8, 0).split(2)
            wanted = {REAL}.__contains__
            for block in walk_blocks(model, batches, propagate="original", wanted=wanted):
                if block.moments:
                    arrays[kind] = block.moments[REAL].hessian.numpy()
                    break
        np.savez(folder / "layer.npz", **arrays)

    key = {"layer": REAL, "text": "python-docs", "sequences": 8, "length": 512, "version": 1}
    with np.load(cached("proteus-test-layer", key, build) / "layer.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def test_real_layer_beats_scalar_codes_and_gptq(real_layer):
    weight, hessian = real_layer["weight"], real_layer["calibration"]
    settings = LayerSettings(window=12)
    inputs = prepare_inputs(hessian, group=REAL, settings=settings)
    layer, report = quantize_layer(weight, inputs, name=REAL, settings=settings)
    decoded = dequantize(layer, settings.window, settings.bits)
    grid = gptq(weight, hessian, group=64)
    scalar = ldlq_scalar(weight, hessian, name=REAL, settings=settings)
    # Fewer bits than GPTQ, about as many as the scalar code.
    assert layer.bits_per_weight < 2.06 < grid.bits_per_weight == 2.5
    for metric in (inputs.hessian, real_layer["evaluation"]):
        ours, theirs, scalars, nearest = (
            proxy_error(weight, one, metric)
            for one in (decoded, grid.weight, scalar.weight, rtn(weight).weight)
        )
        assert ours < 0.75 * scalars
        assert ours < 0.4 * theirs
        assert ours < 0.1 * nearest
    # Row and column scales gain several percent here, on the text that they were fitted to.
    assert 0.9 < report.proxy_error_compensated / report.proxy_error < 0.97


def test_incoherence_makes_real_weights_gaussian(real_layer):
    weight, hessian = real_layer["weight"], real_layer["calibration"]
    inputs = prepare_inputs(hessian, group=REAL, settings=QUICK)
    rotation = Rotation(inputs.su, torch.ones(576), inputs.transform, transform_for(576))
    before, after = (float(w.pow(4).mean() / w.var() ** 2 - 3) for w in (weight, rotation.apply(weight)))
    assert before > 1
    assert abs(after) < 0.1
