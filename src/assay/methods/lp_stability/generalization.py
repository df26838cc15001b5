"""Bounds of the gap between risk and training risk (signatures; being filled in)."""

from __future__ import annotations

from dataclasses import dataclass

from assay.methods.lp_stability.concentration import Bound, Level, Radius
from assay.methods.lp_stability.envelopes import Envelope


@dataclass(frozen=True)
class GapBound:
    """risk <= reference risk + value, with probability at least 1 - delta over `over`; value = radius.value + bias."""

    value: float
    radius: Radius
    bias: float
    target: str  # "training risk" | "leave-one-out risk" | "test minus training" | "transfer risk"
    over: str  # "draw of the training sample"
    reason: str = ""


def erm_gap(gap: Envelope, m: int, delta: float, *, bias: float, bound: Bound = "best", level: Level = "auto",
            p="auto", sided=1, scales=None) -> GapBound:
    """R - Remp. `gap` is the combined envelope 2 beta H + beta' G / m; `bias` is beta E H."""
    raise NotImplementedError


def leave_one_out_gap(gap: Envelope, m: int, delta: float, *, size_gap: float | None, bound: Bound = "best",
                      level: Level = "auto", p="auto", sided=1, scales=None) -> GapBound:
    """R - Rloo. `size_gap` bounds E R_m - E R_(m-1): 0 when declared monotone; beta E H under A1/A2; None -> inf."""
    raise NotImplementedError
