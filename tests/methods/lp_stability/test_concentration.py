"""Radii and tails against closed forms, exact laws, exhaustive enumeration and plain reference
computations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, signal, stats

from assay.errors import InputError
from assay.methods.lp_stability import closed_forms, fuk_nagaev, known_law, truncation
from assay.methods.lp_stability.concentration import radii, radius, radius_table, tail
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, FiniteEnvelope
from assay.methods.lp_stability.laws import LawEnvelope
from assay.methods.lp_stability.truncation import TruncationSums

BOUNDS = ("optimised", "paper", "rio", "chebyshev", "mcdiarmid", "subgaussian", "subexponential")
EVERYTHING = DeclaredEnvelope(
    {2.0: 2e-4, 4.0: 5e-7, 6.0: 3e-9}, bound=0.2, subgaussian=0.15, subexponential=0.05
)
LOW = DeclaredEnvelope({1.5: 1e-3})


def test_printed_constants():
    log_c1, c2 = closed_forms.paper_constants(np.array([2.0, 4.0]))
    np.testing.assert_allclose(np.exp(log_c1), [4 * 8**2, 4 * 6**4], rtol=1e-12)
    np.testing.assert_allclose(c2, [1 / (32 * math.e**2), 1 / (72 * math.e**4)], rtol=1e-12)
    np.testing.assert_allclose(c2, [4.2293e-3, 2.5439e-4], rtol=1e-4)


def test_printed_bound_is_the_formula():
    z, p, n = 9.0, 4.0, 50
    expected = 4 * 6**4 * n * 3.0 / z**4 + 2 * math.exp(-(z**2) / (72 * math.e**4) / (n * 1.5))
    assert min(1.0, expected) == pytest.approx(tail(z, {2: 1.5, 4: 3.0}, n, p=p, bound="paper"))
    z = 2000.0
    expected = 4 * 6**4 * n * 3.0 / z**4 + 2 * math.exp(-(z**2) / (72 * math.e**4) / (n * 1.5))
    assert expected < 0.1
    assert tail(z, {2: 1.5, 4: 3.0}, n, p=p, bound="paper") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("delta", [0.4, 1e-2, 1e-5, 1e-11])
@pytest.mark.parametrize("sided", [1, 2])
@pytest.mark.parametrize("bound", [*BOUNDS, "best"])
def test_tail_inverts_radius(bound, sided, delta):
    found = radius(EVERYTHING, 300, delta, bound=bound, sided=sided)
    back = tail(found.value, EVERYTHING, 300, bound=bound, sided=sided)
    assert back == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("bound", ["optimised", "paper-lowp", "von-bahr-esseen", "best"])
def test_tail_inverts_radius_without_variance(bound):
    found = radius(LOW, 300, 1e-3, bound=bound)
    assert tail(found.value, LOW, 300, bound=bound) == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize("level", ["moments", "tail", "bounded"])
def test_tail_inverts_radius_at_every_level_of_information(level):
    points = np.array([0.0, 1.0, 5.0])
    law = FiniteEnvelope(np.abs(np.subtract.outer(points, points)), np.array([0.6, 0.39, 0.01]))
    found = radius(law, 100, 1e-3, bound="optimised", level=level)
    assert tail(found.value, law, 100, bound="optimised", level=level) == pytest.approx(1e-3, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    delta=st.floats(1e-9, 0.5),
    factor=st.floats(0.2, 0.95),
    n=st.integers(1, 10**6),
    ratio=st.floats(1.0, 1e4),
    p=st.floats(2.0, 12.0),
)
def test_radius_falls_with_delta_and_with_n(delta, factor, n, ratio, p):
    def at(delta, n, bound):
        # f is a mean: H = |x - x'| / n.
        return float(radii(delta, n, p=p, moment_p=ratio / float(n) ** p, moment_2=1 / n**2, bound=bound))

    for bound in ("optimised", "paper", "rio", "chebyshev", "best"):
        value = at(delta, n, bound)
        assert at(delta * factor, n, bound) > value * (1 - 1e-6)
        assert at(delta, 2 * n, bound) < value * (1 + 1e-6)


def test_optimised_is_never_above_the_printed_theorem():
    rng = np.random.default_rng(0)
    n = np.floor(10 ** rng.uniform(0, 6, 1000))
    p, ratio = rng.uniform(2, 12, 1000), np.exp(rng.exponential(2, 1000) * rng.choice([0.01, 1], 1000))
    delta = 10 ** rng.uniform(-30, -0.01, 1000)
    for sided in (1, 2):
        optimised, paper = (
            radii(delta, n, p=p, moment_p=ratio, moment_2=1.0, bound=bound, sided=sided)
            for bound in ("optimised", "paper")
        )
        assert (optimised <= paper).all()


@settings(max_examples=30, deadline=None)
@given(
    delta=st.floats(1e-12, 0.9),
    n=st.integers(1, 10**5),
    ratio=st.floats(1.0, 1e3),
    sided=st.sampled_from([1, 2]),
)
def test_best_is_the_least(delta, n, ratio, sided):
    table = radius_table({2: 1.0, 4: ratio}, n, delta, sided=sided)
    assert table["best"].value == min(found.value for name, found in table.items() if name != "best")


def test_bennett_known_answer():
    # V = 100 x 1e-4 / 2, h <= 0.01: exp(-(V / c^2) hB(0.4)).
    envelope = DeclaredEnvelope({2: 1e-4}, bound=0.01)
    found = tail(0.2, envelope, 100, bound="optimised", level="bounded")
    assert found == pytest.approx(0.02863698, abs=1e-8)
    assert found == pytest.approx(math.exp(-50 * (1.4 * math.log(1.4) - 0.4)), rel=1e-12)


def test_bennett_inverse():
    a = np.geomspace(1e-300, 1e300, 2001)
    np.testing.assert_allclose(truncation.bennett(truncation.bennett_inverse(a)), a, rtol=1e-12)


def functions_on_the_cube(n):
    """All functions {0,1}^n -> {-1,0,1} up to sign and shift, as value tables."""
    for values in itertools.product((-1, 0, 1), repeat=2**n):
        if values[0] >= 0:
            yield np.array(values, dtype=float).reshape((2,) * n)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_exhaustive_validity(n):
    """Every function on the cube: the exact tail is below every bound, whatever the order."""
    checked = 0
    for q in (1 / 3, 1 / 2, 2 / 3):
        law = np.array([1 - q, q])
        weights = np.ones(())
        for _ in range(n):
            weights = np.multiply.outer(weights, law)
        tables = np.stack(list(functions_on_the_cube(n)))
        deviation = (
            tables
            - np.tensordot(tables, weights, axes=(tuple(range(1, n + 1)), tuple(range(n))))[
                (...,) + (None,) * n
            ]
        )
        # H_i for x_i != x_i': the largest change over the other coordinates.
        swaps = [np.abs(np.diff(tables, axis=1 + i)).reshape(len(tables), -1).max(axis=1) for i in range(n)]
        pair = 2 * q * (1 - q)
        for p in (2.0, 3.0, 4.0):
            m2, mp = (sum(swap**order * pair for swap in swaps) for order in (2.0, p))
            moved = m2 > 0
            size = np.abs(deviation).reshape(len(tables), -1)
            for z in (0.3, 0.7, 1.0, 1.4):
                exact = (size > z) @ weights.ravel()
                paper = np.exp(closed_forms.paper_log_tail(z, p, np.log(mp[moved]), m2[moved]))
                assert (exact[moved] <= paper + 1e-12).all()
                assert (exact[~moved] == 0).all()
            for delta in (0.5, 0.1, 0.01):
                # Few pairs of sums occur, each for many functions.
                both = np.round(np.stack([mp, m2])[:, moved], 12)
                pairs, which = np.unique(both, axis=1, return_inverse=True)
                sums = TruncationSums(p, np.log(pairs[0]), np.log(pairs[0]), pairs[1] / 2)
                z, _ = fuk_nagaev.moment_radius(delta, sums, sided=2)
                exact = (size[moved] >= z[which.ravel(), None]) @ weights.ravel()
                assert (exact <= delta + 1e-12).all()
                checked += moved.sum()
    assert checked > 0


def test_one_large_jump():
    """X is 1 with probability 1e-8: no bound may say less, and leaving T(y) out would."""
    q = 1e-8
    law = FiniteEnvelope(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1 - q, q]))
    for bound in ("optimised", "paper", "rio", "chebyshev", "mcdiarmid", "von-bahr-esseen", "best"):
        for level in ("moments", "tail", "bounded"):
            assert tail(0.5, law, 1, bound=bound, level=level, sided=2) >= q * (1 - 1e-12)
    moments = DeclaredEnvelope({2: 2 * q, 20: 2 * q})
    found = radius(moments, 1, q, bound="optimised", p=20.0, sided=2)
    assert found.value > 1 - q
    # At y = 1/25 the exponential term alone is far below q.
    variance, y = q, 1 / 25
    mutant = 2 * math.exp(-variance / y**2 * float(truncation.bennett((0.5 - 2 * q / y**19) * y / variance)))
    assert y**20 * 1 < q
    shift_free = 2 * math.exp(-variance / y**2 * float(truncation.bennett(0.5 * y / variance)))
    assert min(mutant, shift_free) < q


def student_difference_moments(nu, p):
    """E|Z - Z'|^2, E|Z - Z'|^p and E h^p, E h^2 for Student's t, by quadrature."""
    law = stats.t(nu)
    # h(x) = E|x - Z|; the integral of t f(t) beyond x is f(x) (nu + x^2) / (nu - 1).
    x = np.sinh(np.linspace(0, math.asinh(1e5), 40001))
    partial = law.pdf(x) * (nu + x**2) / (nu - 1)
    h = x * (1 - 2 * law.sf(x)) + 2 * partial
    conditional = {q: 2 * integrate.trapezoid(h**q * law.pdf(x), x) for q in (2.0, p)}
    u = np.sinh(np.linspace(-math.asinh(1e4), math.asinh(1e4), 4001))
    density = law.pdf(u)
    inner = [integrate.trapezoid(np.abs(a - u) ** p * density, u) for a in u]
    pair = integrate.trapezoid(inner * density, u)
    return {2.0: 2 * nu / (nu - 2), p: pair}, conditional


def test_row_of_the_measured_table():
    """t_5, p = 4.5, n = 1000, delta = 1e-3: Bennett's form of the bound and the printed theorem."""
    pair, conditional = student_difference_moments(5, 4.5)
    n = 1000
    envelope = DeclaredEnvelope(
        {q: value / n**q for q, value in pair.items()},
        conditional_moments={q: value / n**q for q, value in conditional.items()},
    )
    log_sum = math.log(n) + envelope.log_conditional_moments(4.5)
    sums = TruncationSums(4.5, log_sum, log_sum, n * pair[2.0] / n**2 / 2)
    bennett_form, _ = truncation.bennett_moment_radius(1e-3, sums, sided=2)
    assert 0.28 < bennett_form < 0.32
    assert 13.2 < radius(envelope, n, 1e-3, bound="paper", p=4.5, sided=2).value < 14.6
    # The second level makes use of the p-th moment a second time: a third less. The truth is about 0.135.
    assert 0.18 < radius(envelope, n, 1e-3, bound="optimised", p=4.5, sided=2).value < 0.20


def two_level_objective(parameters, p, mp, sp, variance, delta, sided):
    """The bound of `fuk_nagaev` written out, at log y, log(y - w) - log w and log t."""
    y, t = math.exp(parameters[0]), math.exp(parameters[2])
    w = y / (1 + math.exp(parameters[1]))
    jump = mp / y**p
    if jump >= delta:
        return 1e6 * (1 + jump)

    def phi(u):
        return math.expm1(u) - u if u < 600 else math.inf

    spread = variance * phi(t * w) / w**2
    between = sp * max(phi(t * w) / w**p, phi(t * y) / y**p)
    return sp / y ** (p - 1) + (math.log(sided / (delta - jump)) + spread + between) / t


@pytest.mark.parametrize(
    ("p", "n", "ratio", "delta"),
    [(4.5, 1000, 30.0, 1e-3), (3.0, 100, 5.0, 1e-2), (8.0, 10**5, 500.0, 1e-6), (2.5, 50, 1.2, 0.1)],
)
def test_second_level_matches_a_plain_minimisation(p, n, ratio, delta):
    mp, variance = n * ratio, n / 2
    sums = TruncationSums(p, math.log(mp), math.log(mp), variance)
    found = float(fuk_nagaev.moment_radius(delta, sums, sided=2)[0])
    starts = itertools.product((0.3, 1.0), (1.0, 3.0), (-1.0, 0.0, 1.0))
    edge = math.log(mp / delta) / p
    gaussian = 0.5 * math.log(2 * math.log(2 / delta) / variance)
    least = min(
        optimize.minimize(
            two_level_objective,
            [edge + a, b, gaussian + c],
            args=(p, mp, mp, variance, delta, 2),
            method="Nelder-Mead",
            options={"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-12},
        ).fun
        for a, b, c in starts
    )
    bennett_form = float(truncation.bennett_moment_radius(delta, sums, sided=2)[0])
    assert found == pytest.approx(min(least, bennett_form), rel=2e-3)
    assert found <= min(least, bennett_form) * (1 + 1e-5)


@pytest.mark.parametrize(
    ("p", "n", "ratio", "delta"), [(1.5, 100, 1.0, 1e-2), (2.0, 30, 1.5, 1e-3), (4.5, 1000, 30.0, 1e-3)]
)
def test_bennett_form_matches_a_root_finder(p, n, ratio, delta):
    mp = n * ratio

    def bound(log_y, z):
        y = math.exp(log_y)
        variance = mp * y ** (2 - p) if p < 2 else n / 2
        excess = z - mp / y ** (p - 1)
        if excess <= 0:
            return 1.0
        u = excess * y / variance
        return mp / y**p + 2 * math.exp(-variance / y**2 * ((1 + u) * math.log1p(u) - u))

    def best(z):
        grid = np.linspace(math.log(mp) / p, math.log(mp) / p + 12, 4001)
        start = grid[np.argmin([bound(x, z) for x in grid])]
        return optimize.minimize_scalar(
            bound, args=(z,), bounds=(start - 0.01, start + 0.01), method="bounded"
        ).fun

    sums = TruncationSums(p, math.log(mp), math.log(mp), math.inf if p < 2 else n / 2)
    found = float(truncation.bennett_moment_radius(delta, sums, sided=2)[0])
    # The tail at the radius is delta, and falls there.
    assert best(found) == pytest.approx(delta, rel=1e-5)
    assert best(found * 0.99) > delta * 1.001


@pytest.mark.parametrize(("n", "delta"), [(2, 0.7), (50, 0.1), (1000, 1e-4)])
def test_known_law_matches_a_plain_minimisation(n, delta):
    """h of Pareto's law, index 4, and a variance of n / 2: the formula of `known_law` with its integral."""
    y = np.geomspace(0.01, 1e4, 4000)
    exceedance = n * np.minimum(1.0, y**-4)
    law = known_law.TruncationLaw(y, exceedance, n * 4 / 3 * np.maximum(y, 1.0) ** -3, np.full(y.size, n / 2))
    found, _ = known_law.radius(delta, law)
    assert math.exp(known_law.log_tail(found, law)) == pytest.approx(delta, rel=1e-6)
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def objective(parameters):
        t, w = np.exp(parameters[:2])
        y = w * (1 + math.exp(parameters[2]))
        exceedance = n * min(1.0, y**-4)
        if exceedance >= delta or t * y > 500:
            return 1e6 * (1 + exceedance)
        low, high = math.log(max(w, 1.0)), math.log(y)
        x = 0.5 * (low + high) + 0.5 * (high - low) * nodes
        # E[phi(t h); w < h <= y] with the density 4 h^-5, over log h.
        phi = np.expm1(t * np.exp(x)) - t * np.exp(x)
        between = 0.5 * (high - low) * weights @ (phi * 4 * np.exp(-4 * x))
        spread = n / 2 * (math.expm1(t * w) - t * w) / w**2 + n * between
        return n * 4 / 3 * y**-3 + (math.log(1 / (delta - exceedance)) + spread) / t

    least = min(
        optimize.minimize(
            objective,
            [0.5 * math.log(math.log(1 / delta) / n) + a, b, 0.25 * math.log(n / delta)],
            method="Nelder-Mead",
            options={"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-12},
        ).fun
        for a in (-1.0, -0.3, 0.6)
        for b in (-0.5, 0.1, 1.0)
    )
    # The library gives away phi(t y) T(y), because T may be an upper bound.
    assert least * (1 - 1e-4) < found < least * 1.03


def exact_sum_law(values, law, n):
    """Deviations of a sum of n independent integers from its mean, and P(S - ES >= each)."""
    single = np.zeros(values.max() - values.min() + 1)
    single[values - values.min()] = law
    total, power, k = np.ones(1), single, n
    while k:
        if k & 1:
            total = signal.fftconvolve(total, power) if total.size > 500 else np.convolve(total, power)
        power, k = signal.fftconvolve(power, power) if power.size > 500 else np.convolve(power, power), k >> 1
    deviations = np.arange(total.size) + n * values.min() - n * (values @ law)
    return deviations, np.cumsum(total[::-1])[::-1]


@pytest.mark.parametrize("level", ["moments", "tail", "bounded"])
@pytest.mark.parametrize("jump", [3, 12, 40])
def test_bounds_hold_for_sums_with_an_exact_law(level, jump):
    values, law = np.array([-1, 0, 1, jump]), np.array([0.3, 0.395, 0.3, 0.005])
    envelope = FiniteEnvelope(np.abs(np.subtract.outer(values, values)).astype(float), law)
    tightest = math.inf
    for n in (20, 200):
        deviations, exact = exact_sum_law(values, law, n)
        for delta in (0.3, 0.03, 1e-3, 1e-6):
            z = radius(envelope, n, delta, bound="optimised", level=level).value
            assert exact[deviations >= z].max(initial=0.0) <= delta + 1e-13
            tightest = min(tightest, z / deviations[(exact <= delta) & (deviations > 0)].min())
    # Valid, and not by being useless.
    assert tightest < 3


def test_chebyshev_and_cantelli():
    # n independent N(0, 1), f their mean: V = 1/n.
    n = 50
    two, one = (radius({2: 2 / n**2}, n, 0.05, bound="chebyshev", sided=sided).value for sided in (2, 1))
    assert two == pytest.approx(math.sqrt(20 / n))
    assert one == pytest.approx(math.sqrt(19 / n))


def test_closed_forms_of_the_companions():
    n, delta = 40, 0.01
    envelope = DeclaredEnvelope({4: 3.0}, bound=5.0, subgaussian=2.0, subexponential=0.7)
    assert radius(envelope, n, delta, bound="rio").value == pytest.approx(
        delta**-0.25 * math.sqrt(3 * n * math.sqrt(3.0))
    )
    assert radius(envelope, n, delta, bound="mcdiarmid", sided=2).value == pytest.approx(
        math.sqrt(n * 25 * math.log(2 / delta) / 2)
    )
    assert radius(envelope, n, delta, bound="subgaussian").value == pytest.approx(
        math.sqrt(2 * n * 4 * math.log(1 / delta))
    )
    assert radius(envelope, n, delta, bound="subexponential").value == pytest.approx(
        2 * math.sqrt(n * 0.49 * math.log(1 / delta))
    )
    # Beyond the Gaussian regime the tail is exponential with the rate 1 / max s.
    slope = math.log(tail(200.0, envelope, n, bound="subexponential")) - math.log(
        tail(207.0, envelope, n, bound="subexponential")
    )
    assert slope == pytest.approx(10.0)


def test_gaussian_sum_is_subgaussian_exactly():
    # e |Z - Z'| is N(0, 2): the radius is that of Chernoff's bound with twice the variance.
    envelope = DeclaredEnvelope({2: 2.0}, subgaussian=math.sqrt(2))
    z = radius(envelope, 30, 1e-3, bound="subgaussian").value
    assert z == pytest.approx(math.sqrt(2 * 2 * 30 * math.log(1e3)))
    assert stats.norm.sf(z / math.sqrt(30)) < 1e-3


def test_subexponential_norm_bounds_the_moment_generating_function():
    # H exponential with mean 1: E exp(H / s) = 1 / (1 - 1/s) = 2 at s = 2, and E cosh(tH) = 1 / (1 - t^2).
    s = 2.0
    t = np.linspace(0, 1 / s, 101)
    assert (1 / (1 - t**2) <= 1 + (t * s) ** 2 + 1e-12).all()
    envelope = DeclaredEnvelope({2: 2.0}, subexponential=s)
    n, z = 5, 25.0
    t = 1 / s
    expected = math.exp(-(t * z - t * t * n * s * s))
    assert tail(z, envelope, n, bound="subexponential") == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(p=st.floats(1.01, 2.0), x=st.floats(-50, 50).filter(lambda x: abs(x) > 1e-3))
def test_von_bahr_esseen_constant_is_admissible(p, x):
    constant = closed_forms.von_bahr_esseen_constant(round(p, 2))
    p = round(p, 2)
    left = abs(1 + x) ** p
    right = 1 + p * x + constant * abs(x) ** p
    assert left <= right + 1e-9 * max(1, abs(left))


def test_von_bahr_esseen_constant_is_the_least():
    assert closed_forms.von_bahr_esseen_constant(2.0) == pytest.approx(1.0, abs=1e-6)
    assert closed_forms.von_bahr_esseen_constant(1.0001) == pytest.approx(2.0, abs=2e-3)
    p = 1.5
    x = -1 / np.linspace(1e-4, 1, 200001)
    ratio = (np.abs(1 + x) ** p - 1 - p * x) / np.abs(x) ** p
    assert closed_forms.von_bahr_esseen_constant(p) == pytest.approx(ratio.max(), rel=1e-6)


def test_without_variance():
    n, delta = 200, 1e-4
    table = radius_table(LOW, n, delta, sided=2)
    assert table["von-bahr-esseen"].value == pytest.approx(
        (closed_forms.von_bahr_esseen_constant(1.5) * n * 1e-3 / delta) ** (1 / 1.5)
    )
    assert table["optimised"].value <= table["paper-lowp"].value
    assert all(math.isinf(table[name].value) for name in ("paper", "rio", "chebyshev", "mcdiarmid"))
    assert "E H^2" in table["chebyshev"].reason
    assert "p >= 2" in table["rio"].reason


def test_low_p_theorem_is_the_formula():
    z, p, mp = 40.0, 1.5, 2.0
    q = closed_forms.LOW_P_EXPONENTS
    terms = mp * (4 * q / z) ** p + 2 * (math.e * 4**p * q ** (p - 1) * mp / z**p) ** q
    assert math.exp(float(closed_forms.low_p_log_tail(z, p, math.log(mp)))) == pytest.approx(terms.min())


@pytest.mark.parametrize("bound", ["optimised", "paper-lowp", "von-bahr-esseen"])
def test_low_moments_hold_for_a_heavy_law(bound):
    values = np.array([-1, 0, 1, 300])
    law = np.array([0.3, 0.3995, 0.3, 0.0005])
    envelope = FiniteEnvelope(np.abs(np.subtract.outer(values, values)).astype(float), law)
    stated = DeclaredEnvelope({1.5: math.exp(envelope.log_moments(1.5))})
    for delta in (0.2, 0.02, 1e-3):
        z = radius(stated, 30, delta, bound=bound).value
        deviations, exact = exact_sum_law(values, law, 30)
        assert exact[deviations >= z].max(initial=0.0) <= delta + 1e-13


def test_scales():
    envelope = DeclaredEnvelope({2: 2.0, 4: 30.0}, bound=9.0, subgaussian=3.0, subexponential=2.0)
    law = LawEnvelope(pair=stats.halfnorm(scale=2.0))
    tenth = DeclaredEnvelope({2: 2e-2, 4: 30e-4}, bound=0.9, subgaussian=0.3, subexponential=0.2)
    for name in BOUNDS:
        same = radius(envelope, 25, 1e-2, bound=name, scales=np.full(25, 0.1)).value
        assert same == pytest.approx(radius(tenth, 25, 1e-2, bound=name).value, rel=1e-9)
    scales = np.random.default_rng(0).uniform(0.5, 2, 300)
    found = radius(envelope, 300, 1e-2, bound="rio", p=4.0, scales=scales).value
    assert found == pytest.approx(1e-2**-0.25 * math.sqrt(3 * (scales**2).sum() * math.sqrt(30.0)))
    found = radius(envelope, 300, 1e-2, bound="mcdiarmid", scales=scales).value
    assert found == pytest.approx(math.sqrt(81 * (scales**2).sum() * math.log(100) / 2))
    # Rounding many scales up keeps the known-law bound between those of the least and the largest scale.

    def from_law(scales):
        return radius(law, 300, 1e-2, bound="optimised", level="tail", scales=scales).value

    ends = [from_law(np.full(300, s)) for s in (0.5, 2)]
    middle = from_law(scales)
    assert ends[0] < middle < ends[1]
    few = np.repeat([1.0, 2.0], 150)
    exact, rounded = from_law(few), from_law(few * (1 - 1e-9 * np.arange(300)))
    assert exact * (1 - 1e-6) < rounded < 1.1 * exact


def test_averaged_stability_feeds_moment_bounds_only():
    averaged = DeclaredEnvelope({2: 1e-4, 4: 1e-7}, bound=1.0, pointwise=False, provenance="estimated")
    table = radius_table(averaged, 100, 0.01)
    finite = {name for name, found in table.items() if found.value < math.inf}
    assert finite == {"rio", "chebyshev", "best"}
    assert "pointwise" in table["optimised"].reason
    assert table["best"].provenance == "estimated"


def test_no_bound_gives_infinity_with_the_reason():
    found = radius(DeclaredEnvelope({1.0: 3.0}), 100, 0.05)
    assert math.isinf(found.value)
    assert "no almost sure bound" in found.reason
    assert tail(1e6, DeclaredEnvelope({1.0: 3.0}), 100) == 1.0
    found = radius({2: 1.0}, 10, 0.05, p=4.0, bound="optimised", level="moments")
    assert math.isinf(found.value)
    assert "E H^4 is infinite or unknown" in found.reason
    found = radius({2: 1.0}, 10, 0.05, bound="optimised", level="tail")
    assert "law of the envelope is unknown" in found.reason


@pytest.mark.parametrize("p", [1.05, 1.5, 1.95, 2.0, 2.05, 3.0, 30.0])
def test_extreme_confidence_never_underflows_to_a_small_radius(p):
    delta = np.exp(-np.linspace(1, 700, 60))
    found = radii(delta, 100, p=p, moment_p=2.0, moment_2=1.5 if p >= 2 else math.inf, bound="optimised")
    assert (np.diff(found[np.isfinite(found)]) > 0).all()
    assert (np.diff(np.isfinite(found).astype(int)) <= 0).all()


def test_constant_statistic():
    assert radius({2: 0.0, 4: 0.0}, 10, 0.1).value == 0.0
    assert tail(0.1, {2: 0.0}, 10) == 0.0
    assert radius({2: 1.0}, 3, 0.1, scales=np.zeros(3)).value == 0.0


def test_terms_add_up():
    found = radius({2: 1e-4, 4: 1e-7}, 100, 0.01, bound="optimised", level="moments")
    assert found.terms["jump"] + found.terms["exponential"] == pytest.approx(0.01)
    assert found.terms["jump"] == pytest.approx(100 * 1e-7 / found.y_star**4)
    assert found.terms["shift"] == pytest.approx(100 * 1e-7 / found.y_star**3)
    assert found.terms["variance"] == pytest.approx(0.5 * 100 * 1e-4)


def test_radii_agree_with_radius():
    rng = np.random.default_rng(1)
    delta, n = 10 ** rng.uniform(-6, -1, 12), rng.integers(1, 10**4, 12)
    p, ratio = rng.uniform(1.2, 6, 12), rng.uniform(1, 50, 12)
    for bound in ("best", "optimised", "paper", "rio", "chebyshev"):
        together = radii(delta, n, p=p, moment_p=ratio, moment_2=1.0, bound=bound, sided=2)
        for i in range(12):
            stated = {p[i]: ratio[i], 2.0: 1.0}
            alone = radius(stated, int(n[i]), delta[i], p=p[i], bound=bound, sided=2).value
            if bound == "best":
                assert together[i] >= alone * (1 - 1e-6)
            else:
                assert together[i] == pytest.approx(alone, rel=1e-6)
    assert radii(0.1, np.ones((3, 1)), p=np.full(4, 3.0), moment_p=1.0).shape == (3, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": float("nan")}, "delta is nan"),
        ({"n": 0}, "n is 0"),
        ({"n": 2.5}, "n is 2.5"),
        ({"p": 1.0}, "p is 1.0"),
        ({"p": math.inf}, "p is inf"),
        ({"sided": 3}, "sided is 3"),
        ({"bound": "azuma"}, "bound is 'azuma'"),
        ({"level": "all"}, "level is 'all'"),
        ({"scales": np.ones(3)}, r"scales has shape \(3,\)"),
        ({"scales": np.r_[np.ones(9), -1.0]}, r"scales\[9\] is -1.0"),
        ({"envelope": {2: -1.0}}, r"moments\[2\] is -1.0"),
        ({"envelope": {2: math.nan}}, r"moments\[2\] is nan"),
        ({"envelope": {2: 1e-310}}, "underflow"),
        ({"envelope": {2: 0.0, 4: 1.0}}, "mixes zero"),
        ({"envelope": {}}, "moments is empty"),
        ({"envelope": 3.0}, "envelope is a float"),
    ],
)
def test_bad_input_names_the_field_and_the_value(change, message):
    arguments = {"envelope": {2: 1.0}, "n": 10, "delta": 0.1, **change}
    with pytest.raises(InputError, match=message):
        radius(**arguments)


def test_bad_input_of_tail_and_radii():
    with pytest.raises(InputError, match="z is -1"):
        tail(-1.0, {2: 1.0}, 10)
    with pytest.raises(InputError, match=r"delta is .*1\.5"):
        radii(np.array([0.1, 1.5]), 10, p=2.0, moment_p=1.0)
    with pytest.raises(InputError, match=r"n is .*0\.5"):
        radii(0.1, 0.5, p=2.0, moment_p=1.0)
    with pytest.raises(InputError, match="bound is 'mcdiarmid'"):
        radii(0.1, 5, p=2.0, moment_p=1.0, bound="mcdiarmid")
