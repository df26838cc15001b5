"""A study: the claims of a paper, the trials that test them, and the figures that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.study.claims import Claim
from assay.study.trials import FinishedTrial, Scale, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Panel(NamedTuple):
    """A figure of a report, with the sentence that says how to read it."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Study:
    """The experiment that ships with a method.

    Args:
        method: the name of the method, as in its card.
        question: what the study asks, in one sentence.
        claims: the falsifiable sentences, written down before the run.
        trials: `(scale, seeds) -> trials`; `seeds` is the number of seeds that the user asked for, or None
            for the scale's own.
        run: runs one trial in a worker process and returns its measurements; deterministic for the trial,
            whatever ran in the same process before.
        figures: the trials that finished well -> panels by name. It is called once for the light and once for
            the dark theme, with matplotlib's rcParams set accordingly, and must leave out what it has no
            trials for.
    """

    method: str
    question: str
    claims: Sequence[Claim]
    trials: Callable[[Scale, int | None], Iterable[Trial]]
    run: Callable[[Trial], Mapping[str, float]]
    figures: Callable[[Sequence[FinishedTrial]], Mapping[str, Panel]]
