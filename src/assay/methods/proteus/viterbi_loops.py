"""The loops of the Viterbi encoder, compiled by numba; `viterbi.encode_tiles_reference` defines what they do.

What makes them fast: the cost of a state is never stored, only `best`, the cheapest cost by prefix; the code
values are laid out so that the inner loop reads and writes without strides; and one sequence at a time stays
in the cache. State j + d Q with j = R q + r (Q prefixes, R branches, d < R, r < R, q < Q / R) lies at
`planes[..][r, d, q]`, so that its prefix R' = (j + d Q) / R is q + d Q / R: for fixed r and d, all of it is
contiguous in q.

The number of branches and of values a state are lengths of tuples among the arguments, hence constants for
the compiler, which unrolls the loops over them and vectorises the loop over q (four times faster than with
plain integers). No option of numba that reorders or fuses floating-point operations is on, so the costs are
the reference's to the bit.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32
from numba import njit

Planes = tuple[Float32[np.ndarray, "branches branches groups"], ...]


def planes_of(values: Float32[np.ndarray, "states V"], branches: int) -> Planes:
    """Code values in the order in which the loops read them, one array a coordinate.

    A trellis of fewer than branches^2 states has no such order: its values stay as they are, with two axes of
    length 1.
    """
    groups = len(values) // branches**2
    if not groups:
        return tuple(np.ascontiguousarray(column)[None, None] for column in values.T)
    return tuple(
        np.ascontiguousarray(column.reshape(branches, groups, branches).transpose(2, 0, 1))
        for column in values.T
    )


@njit(cache=True, nogil=True)
def encode(x, values, planes, branch_numbers, span, states):
    """Encode sequences one after another.

    Args:
        x: [n, steps, V].
        values: [states, V].
        planes: `planes_of(values, branches)`.
        branch_numbers: the tuple (0, ..., 2^k - 1); only its length counts.
        span: steps around the wrap that the first pass looks at.
        states: [n, steps], int32, filled here.
    """
    steps = x.shape[1]
    branches = len(branch_numbers)
    prefixes = len(values) // branches
    groups = max(prefixes // branches, 1)
    half = span // 2
    best = np.empty(prefixes, np.float32)
    lowest = np.empty((prefixes // groups, groups), np.float32)
    choices = np.empty((steps, prefixes // groups, groups), np.uint8)
    around = np.empty((span, x.shape[2]), np.float32)
    rotated = np.empty(span, np.int32)
    for sequence in range(x.shape[0]):
        for step in range(span):
            around[step] = x[sequence, (step + steps - half) % steps]
        best[:] = 0.0
        _forward(around, values, planes, branch_numbers, best, lowest, choices)
        rotated[span - 1] = _cheapest_state(around[span - 1], values, best, branches)
        _trace_back(rotated, choices, branches, prefixes)
        wrap = rotated[half] // branches
        best[:] = np.inf
        best[wrap] = 0.0
        _forward(x[sequence], values, planes, branch_numbers, best, lowest, choices)
        states[sequence, steps - 1] = _cheapest_end(x[sequence, steps - 1], values, best, branches, wrap)
        _trace_back(states[sequence], choices, branches, prefixes)


@njit(cache=True, nogil=True)
def _forward(x, values, planes, branch_numbers, best, lowest, choices):
    """Take `best` through all steps but the last; `choices[t, r, q]` is the predecessor of prefix R q + r."""
    branches = len(branch_numbers)
    if len(values) < branches * branches:
        _forward_small(x, values, branches, best, lowest, choices)
        return
    groups = choices.shape[2]
    for step in range(x.shape[0] - 1):
        for residue in range(branches):
            low, chosen = lowest[residue], choices[step, residue]
            for group in range(groups):
                difference = planes[0][residue, 0, group] - x[step, 0]
                squared = difference * difference
                for axis in range(1, len(planes)):
                    difference = planes[axis][residue, 0, group] - x[step, axis]
                    squared += difference * difference
                cheapest = best[group] + squared
                choice = 0
                for branch in range(1, branches):
                    difference = planes[0][residue, branch, group] - x[step, 0]
                    squared = difference * difference
                    for axis in range(1, len(planes)):
                        difference = planes[axis][residue, branch, group] - x[step, axis]
                        squared += difference * difference
                    cost = best[branch * groups + group] + squared
                    if cost < cheapest:
                        cheapest = cost
                        choice = branch
                low[group] = cheapest
                chosen[group] = choice
        for group in range(groups):
            for residue in range(branches):
                best[group * branches + residue] = lowest[residue, group]


@njit(cache=True, nogil=True)
def _forward_small(x, values, branches, best, lowest, choices):
    """`_forward` for trellises that are too small for planes; prefix j has its choice at [j, 0]."""
    prefixes = len(best)
    for step in range(x.shape[0] - 1):
        for prefix in range(prefixes):
            cheapest = _cost(x[step], values, best, branches, prefix)
            choice = 0
            for branch in range(1, branches):
                cost = _cost(x[step], values, best, branches, prefix + branch * prefixes)
                if cost < cheapest:
                    cheapest = cost
                    choice = branch
            lowest[prefix, 0] = cheapest
            choices[step, prefix, 0] = choice
        best[:] = lowest[:, 0]


@njit(cache=True, nogil=True)
def _cost(x, values, best, branches, state):
    difference = values[state, 0] - x[0]
    squared = difference * difference
    for axis in range(1, len(x)):
        difference = values[state, axis] - x[axis]
        squared += difference * difference
    return best[state // branches] + squared


@njit(cache=True, nogil=True)
def _cheapest_state(x, values, best, branches):
    """The first of the states with the lowest cost at the last step."""
    state = 0
    cheapest = _cost(x, values, best, branches, 0)
    for candidate in range(1, len(values)):
        cost = _cost(x, values, best, branches, candidate)
        if cost < cheapest:
            cheapest = cost
            state = candidate
    return state


@njit(cache=True, nogil=True)
def _cheapest_end(x, values, best, branches, wrap):
    """The first of the cheapest states that end in the bits `wrap`."""
    state = wrap
    cheapest = _cost(x, values, best, branches, wrap)
    for candidate in range(wrap + len(best), len(values), len(best)):
        cost = _cost(x, values, best, branches, candidate)
        if cost < cheapest:
            cheapest = cost
            state = candidate
    return state


@njit(cache=True, nogil=True)
def _trace_back(states, choices, branches, prefixes):
    """Fill `states` from its last entry to its first."""
    for step in range(len(states) - 1, 0, -1):
        prefix = states[step] // branches
        choice = choices[step - 1, prefix % branches, prefix // branches]
        states[step - 1] = prefix + choice * prefixes
