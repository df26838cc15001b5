"""The settings and the steps that they guide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.jepa_guidance import JEPAGuidanceConfig


def test_the_guided_steps_of_the_published_definition():
    config = JEPAGuidanceConfig(tau=0.8, interval=3)
    assert config.guided_steps(50) == list(range(12, 49, 3))
    assert len(config.guided_steps(50)) == 13
    assert JEPAGuidanceConfig(tau=0.8).guided_steps(50) == list(range(10, 50))
    # SDXL-Lightning: 4 steps, of which the first is free.
    assert JEPAGuidanceConfig().guided_steps(4) == [1, 2, 3]
    assert JEPAGuidanceConfig(tau=1.0).guided_steps(4) == [0, 1, 2, 3]
    assert JEPAGuidanceConfig(tau=1e-6).guided_steps(50) == []


@given(tau=st.floats(0.01, 1), interval=st.integers(1, 9), steps=st.integers(1, 80))
def test_guided_steps_follow_their_definition(tau, interval, steps):
    found = JEPAGuidanceConfig(tau=tau, interval=interval).guided_steps(steps)
    assert found == sorted(found)
    for i in range(steps):
        left = 1 - i / steps
        if abs(left - tau) > 1e-6:
            assert (i in found) == (i % interval == 0 and left <= tau)


@given(total=st.floats(0, 9), tau=st.floats(0.05, 1), interval=st.integers(1, 5), steps=st.integers(1, 60))
def test_a_total_is_spread_over_the_guided_steps(total, tau, interval, steps):
    config = JEPAGuidanceConfig(eta_total=total, tau=tau, interval=interval)
    count = len(config.guided_steps(steps))
    assert config.step_size(steps) * max(count, 1) == pytest.approx(total)
    assert JEPAGuidanceConfig(eta=0.3).step_size(steps) == 0.3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eta", -0.1),
        ("eta", float("nan")),
        ("eta", float("inf")),
        ("eta_total", -1.0),
        ("tau", 0.0),
        ("tau", 1.1),
        ("tau", float("nan")),
        ("interval", 0),
        ("interval", 1.5),
        ("k", 0),
        ("oversample", -1),
        ("power_iters", -1),
        ("image_size", 0),
        ("assume_sign", 0),
        ("assume_sign", 2),
        ("schedule", "linear"),
        ("normalize", "l1"),
        ("placement", "during"),
        ("direction", "up"),
        ("method", "svd"),
        ("clamp", "soft"),
        ("decode", "latent"),
    ],
)
def test_bad_values_are_refused_with_their_name_and_value(name, value):
    with pytest.raises(InputError, match=rf"{name} is .*{str(value).replace('.', '[.]')}"):
        JEPAGuidanceConfig(**{name: value})
    with pytest.raises(ValueError, match=name):
        JEPAGuidanceConfig(**{name: value})
