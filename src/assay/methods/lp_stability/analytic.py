"""Analytic envelopes A1-A6 as functions of row pairs (signatures; being filled in).

PairFunction supports `a + b`, `c * a`, `a / m`; call: pair_function(X, y, X_swap, y_swap) -> (n,) values.
  regularised_erm(*, lipschitz, x_bound, strong_convexity, m, evaluation_lipschitz=None) -> PairFunction      # A1: beta H
  constrained_ridge(*, x_bound, weight_bound, strong_convexity, m, evaluation_lipschitz=1.0) -> PairFunction  # A2: beta H
  projected_sgd(*, x_bound, weight_bound, steps, m, evaluation_lipschitz=1.0) -> PairFunction                 # A5: beta H
  loss_sensitivity(*, weight_bound, lipschitz=1.0) -> PairFunction                                            # A6: beta' G
  linear_smoother(S) -> SmootherCoefficients (gap scales per row, bias factor)                                # A3
  WITHOUT_ENVELOPE: dict[str, str]  reasons why "ridge" (plain) and "knn" have none                           # A4
and in moments.py: pair_envelope(function, X, y, ...) / law_envelope(function, draw, ...) -> SampleEnvelope,
  inflate_moment(...), hill_index(...), MomentWarning
"""
