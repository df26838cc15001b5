"""The study lists what its claims need, its trials run, and its figures are drawn from what there is."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from assay.methods.dualgraph import citation_faults, experiments, loop_trials
from assay.methods.dualgraph.corpora import Corpus, Passage
from assay.methods.dualgraph.records import ResearchConfig
from assay.methods.dualgraph.simulation import PassageSearch
from assay.methods.dualgraph.study import CHECKERS, FAULTS, STUDY, WORDINGS
from assay.methods.dualgraph.study_claims import CLAIMS, DOCS_EARLY, DOCS_LAST, HOSTED, LAST
from assay.study import FinishedTrial, Trial


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.dualgraph.study import STUDY; "
        "list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'torch', 'networkx', 'httpx', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_agree():
    assert citation_faults.FAULTS == FAULTS
    assert citation_faults.WORDINGS == WORDINGS
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for plan in experiments.PLANTED_PLANS.values():
        assert plan.queries == LAST
    assert experiments.DOCS_PLAN.queries == DOCS_LAST
    assert DOCS_EARLY % experiments.DOCS_PLAN.per_round == 0


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_trials_are_different_and_have_a_part(scale):
    planned = list(STUDY.trials(scale, 2))
    assert len({each.id for each in planned}) == len(planned)
    assert {str(each.setting["part"]) for each in planned} <= set(experiments.PARTS)


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_claim_has_trials_and_only_hosted_models_wait_for_the_full_scale(scale):
    planned = list(STUDY.trials(scale, None))
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        expected = claim not in HOSTED or scale == "full"
        assert (found.rows + found.missing > 0) == expected, claim.id
        for condition in claim.preconditions:
            rows = [FinishedTrial(one, "ok", {condition.metric: 1.0}) for one in planned]
            assert condition.measure(rows)[0] == 1.0, claim.id


def test_planted_corpora_have_at_least_twenty_seeds_and_arms_the_same_ones():
    seeds = {}
    for trial in STUDY.trials("quick", None):
        if trial.setting["part"] == "planted":
            cell = (trial.setting["concentration"], trial.setting["share"])
            seeds.setdefault(cell, {}).setdefault(trial.arm, []).append(trial.seed)
    assert set(seeds) >= {(1.0, "half"), (1.0, "all"), (0.0, "all")}
    for arms in seeds.values():
        assert len({tuple(one) for one in arms.values()}) == 1
        assert all(len(one) >= 20 for one in arms.values())


def test_metrics_of_the_claims_are_measured():
    setting = {"part": "planted", "concentration": 1.0, "share": "half"}
    measured = set(experiments.run_planted(Trial("outline", setting, 1000)))
    measured |= set(experiments.run_docs(Trial("outline", {"part": "docs"}, 1000)))
    measured |= set(experiments.run_loop(Trial("outline", {"part": "loop", "limit": "rounds"}, 1000)))
    setting = {"part": "citations", "fault": "number", "wording": "verbatim"}
    measured |= set(experiments.run_citations(Trial("lexical", setting, 1000)))
    measured |= {"different", "extra_calls"}
    for claim in CLAIMS:
        if claim not in HOSTED:
            assert claim.metric in measured, claim.id
            assert all(condition.metric in measured for condition in claim.preconditions)


def small_corpus():
    """Ten passages about four names."""
    pairs = [("Alpha", "Beta"), ("Beta", "Gamma"), ("Alpha", "Gamma"), ("Gamma", "Delta"), ("Beta", "Delta")]
    passages = [
        Passage("Page", f"{first} regulates {second} in {place} of 12 sites.", (frozenset((first, second)),))
        for first, second in pairs
        for place in ("some", "most")
    ]
    gold = {tuple(sorted(two)): "linked" for two in pairs}
    return Corpus("How do Alpha and Beta relate to Gamma?", ("Alpha", "Beta"), tuple(passages), gold)


def test_the_backend_of_a_corpus_finds_and_reads_its_passages():
    corpus = small_corpus()
    backend = loop_trials.CorpusBackend(corpus, PassageSearch(corpus.passages))
    hits = backend.search("Gamma Delta", 2)
    assert [backend.read(hit).text for hit in hits] == [corpus.passages[i].text for i in (6, 7)]
    assert hits[0].score > hits[1].score
    others = backend.search("Gamma Delta", 2, exclude={hit.key for hit in hits})
    assert not {hit.key for hit in others} & {hit.key for hit in hits}


@pytest.mark.parametrize("policy", ["dualgraph", "random_pair", "outline", "linear"])
def test_all_policies_have_the_same_limits(policy):
    config = loop_trials.loop_config(ResearchConfig(policy=policy), rounds=3, per_round=8, tokens=1_000)
    assert config.kg_queries + config.og_queries == 8
    assert (config.max_iter, config.results_per_query, config.early_stop) == (3, 3, False)
    assert config.budget.tokens == 1_000


def test_the_loop_finds_and_cites_what_the_corpus_says():
    corpus = small_corpus()
    config = loop_trials.loop_config(ResearchConfig(), rounds=2, per_round=4)
    measured = loop_trials.run_loop(corpus, PassageSearch(corpus.passages), config)
    assert measured["precision"] == 1.0
    assert measured["effective"] >= 3
    assert measured["recall"] >= 0.6
    assert measured["tokens"] > 0
    assert measured["queries"] <= 2 * 4 + 10
    assert measured == loop_trials.run_loop(corpus, PassageSearch(corpus.passages), config)


class Scripted:
    """Stands for a run of five steps; a resumed one repeats calls, or ends otherwise, as a test wants."""

    def __init__(self, differs_after=(), calls=10):
        self.differs_after = differs_after
        self.calls = calls
        self.stopped = {}

    def __call__(self, corpus, search, config, folder=None, observer=None):
        if observer is not None:
            for step in range(1, 6):
                self.stopped[folder] = step
                observer(step)
            return SimpleNamespace(report="as it should be", ledger=range(10))
        stopped = self.stopped[folder]
        report = "other" if stopped in self.differs_after else "as it should be"
        return SimpleNamespace(report=report, ledger=range(self.calls))


@pytest.mark.parametrize(
    ("runs", "different", "extra"),
    [(Scripted(), 0, 0), (Scripted(differs_after=(2, 4)), 2, 0), (Scripted(calls=13), 0, 3)],
)
def test_what_a_resumed_run_does_otherwise_is_counted(monkeypatch, runs, different, extra):
    monkeypatch.setattr(loop_trials, "_research", runs)
    monkeypatch.setattr(loop_trials, "_graph", lambda run: ())
    measured = loop_trials.run_resume(small_corpus(), None, ResearchConfig())
    assert measured == {"different": different, "extra_calls": extra, "steps": 5}
    # Every step but the last was stopped after.
    assert sorted(runs.stopped.values()) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_stopped_run_ends_as_an_unbroken_one():
    corpus = small_corpus()
    config = loop_trials.loop_config(ResearchConfig(), rounds=2, per_round=4)
    measured = loop_trials.run_resume(corpus, PassageSearch(corpus.passages), config)
    assert measured["different"] == 0
    assert measured["extra_calls"] <= 1
    assert measured["steps"] >= 12


def test_figures_are_drawn_from_what_there_is():
    import matplotlib.pyplot as plt

    assert STUDY.figures([]) == {}
    planned = list(STUDY.trials("quick", 2))
    finished = [FinishedTrial(one, "ok", made_up(one)) for one in planned]
    drawn = STUDY.figures(finished)
    assert set(drawn) == {"docs", "bridges", "concentration", "evidence", "loop", "checkers"}
    for panel in drawn.values():
        assert len(panel.caption) > 60
        panel.figure.canvas.draw()
        plt.close(panel.figure)
    only = [row for row in finished if row.setting["part"] == "docs" and row.arm == "dualgraph"]
    (panel,) = STUDY.figures(only).values()
    plt.close(panel.figure)
    assert set(CHECKERS) == {row.arm for row in finished if row.setting["part"] == "citations"}


def made_up(trial):
    """Measurements of the right names, without running the trial."""
    match trial.setting["part"]:
        case "planted" | "docs":
            metrics = ("recall", "twice", "edges", "intra", "bridge")
            return {f"{metric}:{q}": q / 200 for metric in metrics for q in (10, 20, 180)}
        case "loop":
            return {"effective": 20.0, "recall": 0.5, "tokens": 1e5}
        case "citations":
            return {"auc": 0.9, "roc:0.0": 0.5, "roc:0.5": 0.9, "roc:1.0": 1.0}
        case _:
            return {"different": 0.0}
