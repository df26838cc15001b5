"""DeepResearch Bench trials: research a task with hosted models, then judge the report (full scale only).

What is used is named by the environment, which workers inherit (`assay study dualgraph --scale full`, with
`--cluster` for Ray): `ASSAY_DUALGRAPH_BENCH` is the folder of a copy of the benchmark's repository,
`ASSAY_DUALGRAPH_LLM` and `ASSAY_DUALGRAPH_JUDGE` are chat models, `ASSAY_DUALGRAPH_SEARCH` search back ends
separated by commas, all as on the command line. Runs, searches and pages are kept in the cache: a trial
that is repeated goes on where it stopped, and all arms see the same web.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from assay.cache import cache_folder, cached, content_hash
from assay.errors import InputError
from assay.files import write_json
from assay.methods.dualgraph.backends import open_backend
from assay.methods.dualgraph.chat_models import open_model
from assay.methods.dualgraph.deep_research_bench import fact, load_tasks, race
from assay.methods.dualgraph.records import Budget, Document, Hit, ReadFailed, ResearchConfig, SearchBackend
from assay.methods.dualgraph.research_run import ResearchRun, research
from assay.study import Trial

VARIABLES = (
    "ASSAY_DUALGRAPH_BENCH",
    "ASSAY_DUALGRAPH_LLM",
    "ASSAY_DUALGRAPH_JUDGE",
    "ASSAY_DUALGRAPH_SEARCH",
)
RACE_REPEATS = 3
# More results than a query asks for are kept, so that an arm that has read some finds others.
RESULTS_KEPT = 30
MOST_ROUNDS = 50


class SharedWeb:
    """A search back end whose answers are kept: whichever arm asks first, all arms get the same.

    Errors of the service are not kept; that a page can't be read is.
    """

    def __init__(self, inner: SearchBackend, task: int) -> None:
        self.name = inner.name
        self._inner = inner
        self._key = {"backend": inner.name, "task": task}

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """See `SearchBackend.search`."""

        def ask(folder: Path) -> None:
            hits = self._inner.search(query, RESULTS_KEPT)
            write_json(folder / "hits.json", [dataclasses.asdict(hit) for hit in hits])

        rows = _kept("dualgraph-searches", self._key | {"query": query}, "hits.json", ask)
        hits = [Hit(**(row | {"span": tuple(row["span"]) if row["span"] else None})) for row in rows]
        return [hit for hit in hits if hit.key not in exclude][:k]

    def read(self, hit: Hit) -> Document:
        """See `SearchBackend.read`."""

        def fetch(folder: Path) -> None:
            try:
                page = dataclasses.asdict(self._inner.read(hit))
            except ReadFailed as error:
                page = {"failed": str(error)}
            write_json(folder / "page.json", page)

        page = _kept("dualgraph-pages", self._key | {"url": hit.url}, "page.json", fetch)
        if "failed" in page:
            raise ReadFailed(page["failed"])
        return Document(**(page | {"pages": tuple(page["pages"])}))


def _kept(kind: str, key: dict[str, Any], name: str, build: Callable[[Path], None]) -> Any:
    return json.loads((cached(kind, key, build) / name).read_text(encoding="utf-8"))


def run(trial: Trial) -> dict[str, float]:
    """Research one task under one arm, and judge the report by RACE and FACT.

    Raises:
        InputError: a variable of the environment is not set, or there is no such task.
    """
    bench, model, judge, search = _environment()
    number = int(trial.setting["task"])
    tasks = {task.id: task for task in load_tasks(bench)}
    if number not in tasks:
        raise InputError(f"there is no task {number} in {bench}")
    task = tasks[number]
    web = [SharedWeb(open_backend(name), number) for name in search]
    config = ResearchConfig(language=task.language, checker="combined", seed=trial.seed)
    if trial.setting["limit"] == "tokens" and trial.arm != "dualgraph":
        # As many tokens as dualgraph has spent on this task.
        budget = Budget(tokens=_researched("dualgraph", task.prompt, model, web, config).tokens)
        config = dataclasses.replace(config, max_iter=MOST_ROUNDS, early_stop=False, budget=budget)
    finished = _researched(trial.arm, task.prompt, model, web, config)
    pages = {page.url: page.text for page in finished.documents.values()}
    judging = open_model(judge)
    scores = race(task, finished.report, judging, repeats=RACE_REPEATS)
    facts = fact(task, finished.report, judging, pages.get)
    measured = {
        "race": scores.overall,
        "comprehensiveness": scores.comprehensiveness,
        "insight": scores.insight,
        "instruction_following": scores.instruction_following,
        "readability": scores.readability,
        "effective": float(facts.effective),
        "judged": float(facts.judged),
        "unknown": float(facts.unknown),
        "tokens": float(finished.tokens),
        "rounds": float(len(finished.rounds)),
        "usd": np.nan if finished.usd is None else finished.usd,
    }
    # A report without a citation that could be judged has no accuracy.
    return measured | ({"accuracy": facts.accuracy} if facts.judged else {})


def _environment() -> tuple[str, str, str, list[str]]:
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        raise InputError(f"the full scale needs {', '.join(missing)} to be set (see {__name__})")
    bench, model, judge, search = (os.environ[name] for name in VARIABLES)
    return bench, model, judge, [name.strip() for name in search.split(",") if name.strip()]


def _researched(
    arm: str, prompt: str, model: str, web: list[SharedWeb], config: ResearchConfig
) -> ResearchRun:
    """The finished run of an arm; its folder is in the cache, so that an interrupted one goes on."""
    if arm not in ("linear", "outline", "dualgraph"):
        raise ValueError(f"unknown arm {arm!r}")
    config = dataclasses.replace(config, policy=arm)
    key = {"prompt": prompt, "model": model, "web": [one.name for one in web]}
    folder = cache_folder() / "dualgraph-bench" / content_hash(key | dataclasses.asdict(config))
    return research(prompt, llm=model, search=web, config=config, run_dir=folder)
