"""How a claim is tested: claims, trials, the runner that loses none, and verdicts. It knows of no method."""

from assay.study.claims import Claim, Difference, Equivalence, Invariance, Precondition, Rate, Trend
from assay.study.conduct import run_study, start_run
from assay.study.run_folder import RunFolder
from assay.study.study import Panel, Study
from assay.study.trials import FinishedTrial, Scale, Trial
from assay.study.verdicts import Verdict, judge

__all__ = [
    "Claim",
    "Difference",
    "Equivalence",
    "FinishedTrial",
    "Invariance",
    "Panel",
    "Precondition",
    "Rate",
    "RunFolder",
    "Scale",
    "Study",
    "Trend",
    "Trial",
    "Verdict",
    "judge",
    "run_study",
    "start_run",
]
