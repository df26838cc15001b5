"""The simulation of query policies is fair, counts what it says, and finds what it should."""

import numpy as np
import pytest

from assay.errors import InputError
from assay.methods.dualgraph import experiments
from assay.methods.dualgraph.corpora import Corpus, Passage, PlantedDesign, planted
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.records import Chain, ResearchConfig
from assay.methods.dualgraph.simulation import FACETS, PassageSearch, Plan, Simulation, choose
from assay.study import Trial

ARMS = (
    "linear",
    "outline",
    "random-pair",
    "dualgraph",
    "no-enrich",
    "no-explore",
    "no-communities",
    "degree-corrected",
)
PLAN = Plan(queries=40, per_round=10)


def simulate(corpus, arm, seed=0, plan=PLAN):
    """A finished simulation with its checkpoints and the queries that it asked, in order."""
    asked = []

    class Noting(PassageSearch):
        def search(self, query, k, seen):
            asked.append(query)
            return super().search(query, k, seen)

    simulation = Simulation(
        corpus, Noting(corpus.passages), experiments.config_of(arm, seed), HashedWords().encode, plan
    )
    return simulation, list(simulation.run()), asked


def passage(text, *names):
    return Passage("Note", text, (frozenset(names),))


def test_search_is_bm25_over_whole_identifiers():
    search = PassageSearch(
        [passage("set FOO_BAR here"), passage("FOO and BAR apart"), passage("FOO_BAR and more FOO_BAR")]
    )
    assert set(search.search("FOO_BAR", 5, ())) == {0, 2}
    assert search.search("foo_bar", 5, {0}) == [2]
    assert search.search("nothing", 5, ()) == []
    assert search.search("?!", 5, ()) == []
    assert search.search('a "quoted" OR (query)', 5, ()) == []
    assert len(search.search("FOO_BAR BAR", 2, ())) == 2


@pytest.mark.parametrize("arm", ARMS)
def test_all_arms_start_alike_and_ask_and_read_equally_much(arm):
    corpus = planted(PlantedDesign(), 1000)
    _, reference, first = simulate(corpus, "outline")
    _, states, asked = simulate(corpus, arm)
    assert asked[:10] == first[:10]
    assert states[0] == reference[0]
    assert len(asked) == len(set(asked)) == 40
    assert [state.queries for state in states] == [10, 20, 30, 40]
    # A passage is read once, three a query, as long as the search returns any.
    assert all(state.read <= 3 * state.queries for state in states)
    if arm != "linear":
        assert states[-1].read == 120


def test_the_share_of_queries_from_the_graph_is_kept():
    corpus = planted(PlantedDesign(), 1001)
    for share in (5, 10):
        _, _, asked = simulate(corpus, "dualgraph", plan=Plan(queries=40, from_graph=share))
        from_outline = [query.split()[1] in FACETS for query in asked]
        for start in (10, 20, 30):
            assert sum(from_outline[start : start + 10]) == 10 - share


def test_what_is_read_becomes_edges_with_evidence():
    corpus = Corpus(
        "What about Alpha?",
        ("Alpha",),
        (
            passage("Alpha overview of Beta", "Alpha", "Beta"),
            passage("Beta and Alpha", "Alpha", "Beta"),
            passage("Beta and Gamma", "Beta", "Gamma"),
            passage("Gamma and Delta", "Gamma", "Delta"),
        ),
        {("Alpha", "Beta"): "linked", ("Gamma", "Delta"): "linked"},
    )
    plan = Plan(queries=12, per_round=3, from_graph=1, results=1)
    simulation, states, asked = simulate(corpus, "outline", plan=plan)
    assert asked[0] == "Alpha overview"
    graph = simulation.graph
    assert {node.name: node.is_core for node in graph.nodes.values()} == {
        "Alpha": True,
        "Beta": False,
        "Gamma": False,
    }
    assert graph.pair_evidence() == {(1, 2): {1, 2}, (2, 3): {3}}
    # Gamma is two steps away from the core: nobody asks for it, so its relation stays unknown.
    assert not any(query.startswith("Gamma") for query in asked)
    assert states[-1].found == {("Alpha", "Beta"): 2}
    assert (states[-1].nodes, states[-1].edges, states[-1].read) == (3, 2, 3)


def test_the_choice_of_chains_leaves_out_what_is_off_topic_and_lets_types_take_turns():
    kinds = ["enrich"] * 4 + ["entity_concept"] * 2 + ["sbm_entropy"] * 2
    chains = [
        Chain(i, kind, (2 * i, 2 * i + 1), (f"a{i}", f"b{i}"), 0.0, "", on_topic=i != 0)
        for i, kind in enumerate(kinds)
    ]
    chosen = choose(chains)
    assert sorted(chain.id for chain in chosen) == list(range(1, 8))
    assert {chain.type for chain in chosen[:3]} == {"enrich", "entity_concept", "sbm_entropy"}
    ids = [chain.id for chain in chosen if chain.type == "enrich"]
    assert ids == sorted(ids)


def test_what_is_measured_of_a_trajectory():
    trial = Trial("dualgraph", {"part": "planted", "concentration": 1.0, "share": "half"}, 1002)
    measured = experiments.run_planted(trial)
    queries = sorted(int(name.split(":")[1]) for name in measured if name.startswith("recall:"))
    assert queries == list(range(10, 181, 10))
    for metric in ("recall", "intra", "bridge", "twice"):
        curve = [measured[f"{metric}:{q}"] for q in queries]
        assert curve == sorted(curve)
        assert 0 <= curve[0] <= curve[-1] <= 1
    weighted = (100 * measured["intra@180"] + 10 * measured["bridge@180"]) / 110
    assert measured["recall@180"] == pytest.approx(weighted)
    assert measured["growth"] == pytest.approx(measured["recall@180"] - measured["recall@20"])
    assert measured["bridge_lead"] == pytest.approx(measured["bridge@180"] - measured["intra@180"])
    assert measured["reachable"] == 1.0
    assert measured["false_edges"] == 0.0
    assert all(measured[f"bridge@{q}"] == measured[f"bridge:{q}"] for q in (20, 40, 180))
    reached = [number for number, q in enumerate(queries, 1) if measured[f"recall:{q}"] >= 0.75]
    assert measured["rounds"] == reached[0]


def test_a_trial_repeats_itself():
    trial = Trial("dualgraph", {"part": "planted", "concentration": 0.5, "share": "all"}, 1003)
    first = experiments.run_planted(trial)
    experiments.run_planted(Trial("random-pair", dict(trial.setting), 7))
    assert experiments.run_planted(trial) == first


def test_arms_are_the_configurations_that_they_are_called():
    assert experiments.config_of("no-explore", 3) == ResearchConfig(without=("explore",), seed=3)
    assert experiments.config_of("random-pair", 0).policy == "random_pair"
    assert experiments.config_of("degree-corrected", 0).degree_corrected
    with pytest.raises(ValueError, match="unknown arm 'other'"):
        experiments.config_of("other", 0)


@pytest.mark.parametrize(
    "wrong", [{"queries": 10}, {"queries": 25}, {"from_graph": 0}, {"from_graph": 11}, {"per_round": 200}]
)
def test_plans_without_whole_rounds_are_refused(wrong):
    with pytest.raises(InputError):
        Plan(**wrong)


def paired(metric, first, second, concentration, share, seeds):
    """Mean difference and half the width of its 95% interval."""
    differences = []
    for seed in seeds:
        setting = {"part": "planted", "concentration": concentration, "share": share}
        values = [experiments.run_planted(Trial(arm, setting, seed))[metric] for arm in (first, second)]
        differences.append(values[0] - values[1])
    return np.mean(differences), 2.09 * np.std(differences, ddof=1) / len(differences) ** 0.5


@pytest.mark.slow
def test_bridges_between_few_groups_are_found_by_explore_and_by_it_alone():
    seeds = range(2000, 2020)
    gain, error = paired("bridge:120", "dualgraph", "outline", 1.0, "all", seeds)
    assert gain - error > 0
    without, _ = paired("bridge:120", "no-explore", "outline", 1.0, "all", seeds)
    assert without <= 0.02
    for arm in ("random-pair", "no-enrich"):
        difference, _ = paired("bridge:120", "dualgraph", arm, 0.0, "all", seeds)
        assert abs(difference) <= 0.1
