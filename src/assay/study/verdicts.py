"""How claims and finished trials become verdicts: `judge`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.files import as_json
from assay.study.claims import Claim, Evidence, Outcome
from assay.study.statistics import Estimate, holm_levels
from assay.study.trials import FinishedTrial, Scale, Trial

FAMILY_WISE_ERROR = 0.05
# Trials that fail are rarely a random sample of all trials, so a claim that lacks more than this share
# decides nothing.
LARGEST_MISSING_SHARE = 0.2


@dataclass(frozen=True)
class Verdict:
    """A claim after the run. Field names are those of `verdicts.json`."""

    claim: str
    says: str
    paper: str
    verdict: Outcome
    reason: str
    unit: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    p: float | None = None
    p_holm: float | None = None
    n: int = 0
    rows: int = 0
    missing: int = 0
    effect_size: float | None = None
    treatment_mean: float | None = None
    reference_mean: float | None = None
    preconditions: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return as_json(dataclasses.asdict(self))


def judge(
    claims: Sequence[Claim],
    planned: Sequence[Trial],
    finished: Sequence[FinishedTrial],
    scale: Scale,
    alpha: float = FAMILY_WISE_ERROR,
) -> list[Verdict]:
    """Turn the trials of a study into one verdict per claim.

    A claim *holds* when its whole interval lies in the claim's region, *fails* when it lies wholly outside on
    one side, and is *inconclusive* otherwise. Intervals have family-wise level 1 - alpha over the claims that
    have one (Holm). A claim is *not testable* when a precondition is not met or the scale has no trials for
    it.
    """
    successful = {trial.trial.id: trial for trial in finished if trial.ok}
    evidence = [claim.evidence(planned, successful) for claim in claims]
    settled = [
        _before_any_test(claim, found, successful, scale)
        for claim, found in zip(claims, evidence, strict=True)
    ]
    tested = [
        i
        for i, verdict in enumerate(settled)
        if verdict.verdict == "inconclusive" and evidence[i].estimate is not None
    ]
    p_values = [claims[i].decisive_p(_estimate(evidence[i])) for i in tested]
    for i, p, (level, adjusted) in zip(tested, p_values, holm_levels(p_values, alpha), strict=True):
        estimate = _estimate(evidence[i])
        low, high = estimate.interval(level)
        outcome = claims[i].decide(low, high)
        reason = evidence[i].reason
        if reason and outcome == "holds":
            outcome = "inconclusive"
        elif outcome == "inconclusive":
            reason = "the interval contains the margin"
        if settled[i].reason:
            outcome, reason = "inconclusive", settled[i].reason
        settled[i] = dataclasses.replace(
            settled[i],
            verdict=outcome,
            reason=reason,
            effect=estimate.value,
            low=low,
            high=high,
            level=1 - level,
            p=p,
            p_holm=adjusted,
            n=estimate.n,
        )
    return settled


def _before_any_test(
    claim: Claim, found: Evidence, successful: Mapping[str, FinishedTrial], scale: Scale
) -> Verdict:
    """The verdict as far as one claim alone can say; "inconclusive" where a test must follow."""
    verdict = Verdict(
        claim=claim.id,
        says=claim.says,
        paper=claim.paper,
        verdict="inconclusive",
        reason="" if found.estimate is not None else found.reason,
        unit=found.unit,
        rows=found.rows,
        missing=found.missing,
        effect_size=found.effect_size,
        treatment_mean=found.treatment_mean,
        reference_mean=found.reference_mean,
    )
    if scale == "smoke":
        reason = "the smoke scale only checks that the code runs; it gives no verdicts"
        return dataclasses.replace(verdict, verdict="not testable", reason=reason)
    planned = found.rows + found.missing
    if planned == 0:
        reason = f"the {scale} scale has no trials for this claim"
        return dataclasses.replace(verdict, verdict="not testable", reason=reason)
    conditions = []
    for condition in claim.preconditions:
        value, met = condition.measure(successful.values())
        conditions.append(
            {"says": condition.says, "value": value, "threshold": condition.threshold, "met": met}
        )
    verdict = dataclasses.replace(verdict, preconditions=tuple(conditions))
    if unmet := [condition["says"] for condition in conditions if not condition["met"]]:
        return dataclasses.replace(verdict, verdict="not testable", reason="not met: " + "; ".join(unmet))
    if found.missing / planned > LARGEST_MISSING_SHARE:
        return dataclasses.replace(verdict, reason=f"{found.missing} of {planned} trials are missing")
    if found.exact is not None:
        outcome, effect, low, high = found.exact
        if outcome == "holds" and found.missing:
            outcome = "inconclusive"
            verdict = dataclasses.replace(verdict, reason=f"{found.missing} of {planned} trials are missing")
        return dataclasses.replace(
            verdict, verdict=outcome, effect=effect, low=low, high=high, level=1.0, n=found.rows
        )
    return verdict


def _estimate(evidence: Evidence) -> Estimate:
    assert evidence.estimate is not None
    return evidence.estimate
