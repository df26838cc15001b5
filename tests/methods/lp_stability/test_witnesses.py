"""The two counterexamples, exactly, and the Gaussian mean."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from assay.methods.lp_stability import meta, transductive
from assay.methods.lp_stability.baselines import bousquet_elisseeff
from assay.methods.lp_stability.concentration import radius
from assay.methods.lp_stability.envelopes import AssumptionViolated, DeclaredEnvelope, FiniteEnvelope
from assay.methods.lp_stability.laws import LawEnvelope
from assay.methods.lp_stability.witnesses import GaussianMean, meta_witness, transductive_witness


def test_transductive_witness():
    witness = transductive_witness()
    assert witness.refutes
    assert witness.exceedance == 1
    assert (witness.printed_envelope, witness.corrected_envelope, witness.true_swap) == (0, 2, 2)
    corrected = DeclaredEnvelope({2: 4.0}, bound=float(witness.corrected_envelope))
    for bound in ("best", "optimised", "chebyshev", "rio", "mcdiarmid"):
        assert transductive.tail(0.5, corrected, 1, 1, bound=bound, sided=2) >= witness.exceedance
        assert transductive.radius(corrected, 1, 1, 0.05, bound=bound, sided=2).value >= 1


def test_meta_witness():
    witness = meta_witness()
    assert witness.refutes
    assert witness.exceedance == 1
    assert witness.printed_envelope == 0
    with pytest.raises(AssumptionViolated, match="stability within tasks"):
        meta.certify(np.array([1.0]), 0.05, task_gap=None, task_bias=0.0, within_bias=0.0)
    # With the task-level envelope the bound contains the gap of 1/2: the bias alone is E beta H = 1/2.
    tasks = FiniteEnvelope(float(witness.corrected_envelope) * (1 - np.eye(2)), np.full(2, 0.5))
    gap = meta.transfer_gap(tasks, 1, 0.05, task_bias=0.5, within_bias=0.0)
    assert gap.value >= Fraction(1, 2)
    assert "draw of the 1 tasks" in gap.over


def test_gaussian_mean():
    witness = GaussianMean(50)
    changes = witness.sample_changes(20_000, np.random.default_rng(0))
    measured = math.sqrt(np.mean(changes**2))
    assert measured == pytest.approx(witness.change_norm(), rel=0.03)
    assert witness.change_norm() < witness.envelope_norm() == math.sqrt(2) / 50
    # The share c of the envelope that is used grows to one with m.
    shares = [GaussianMean(m).change_norm() / GaussianMean(m).envelope_norm() for m in (2, 10, 100, 10_000)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=0.02)


def test_gaussian_mean_has_a_bound_where_bounded_differences_have_none():
    m = 50
    envelope = LawEnvelope(pair=stats.halfnorm(scale=math.sqrt(2) / m))
    none = radius(envelope, m, 0.01, bound="mcdiarmid")
    assert math.isinf(none.value)
    assert "almost sure bound" in none.reason
    assert bousquet_elisseeff(math.inf, m, 0.01, loss_bound=math.inf) == math.inf
    assert radius(envelope, m, 0.01).value < 1
