"""The tasks that a model is given: instructions, inputs as text, and the schemas of the answers.

The instructions are ours; what is asked follows the paper's description of its roles and the published code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.methods.dualgraph.safety import DATA_RULE, delimited

Data = Mapping[str, Any]


def _object(optional: Sequence[str] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_NUMBER = {"type": "number"}
_TRUTH = {"type": "boolean"}

RUBRIC = ("instruction", "depth", "balance", "breadth", "support", "insight")
"""What an outline is judged by, each from 0 to 10."""


@dataclass(frozen=True)
class Role:
    """A task for a model.

    Attributes:
        instruction: the system message, before the rule on retrieved text.
        schema: what the answer must match.
        show: the input as the text of the user's message, given the input and the run's nonce.
        max_tokens: of the answer.
    """

    instruction: str
    schema: Mapping[str, Any]
    show: Callable[[Data, str], str]
    max_tokens: int = 4096

    def messages(self, data: Data, nonce: str) -> list[dict[str, str]]:
        """The messages for an input.

        Args:
            data: the input, as strict JSON values.
            nonce: marks retrieved text; must not be known to its authors.
        """
        language = f" Write in the language with the tag {data['language']!r}." if "language" in data else ""
        system = f"{self.instruction}{language} Answer with one JSON object and nothing else.\n\n{DATA_RULE}"
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": self.show(data, nonce)},
        ]


def _part(title: str, text: str) -> str:
    return f"## {title}\n{text or '(none)'}\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _evidence(items: Sequence[Data], nonce: str) -> str:
    return "\n".join(delimited(f"EN{e['id']} | {e['title']}\n{e['content']}", nonce) for e in items)


def _relations(edges: Sequence[Data], nonce: str) -> str:
    lines = [f"{e['source']} | {e['relation']} | {e['target']} {e['evidence']}" for e in edges]
    return delimited("\n".join(lines), nonce) if lines else ""


def _show_outline_init(data: Data, nonce: str) -> str:
    return _part("Question", data["question"])


def _show_outline_queries(data: Data, nonce: str) -> str:
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Outline", data["outline"]),
            _part("Lines without evidence", _bullets(data["uncited"])),
            _part("Queries that were executed", _bullets(data["executed"])),
            _part("Queries that are planned", _bullets(data["pending"])),
            _part("Limit", f"at most {data['limit']} queries"),
        ]
    )


def _show_select_urls(data: Data, nonce: str) -> str:
    hits = [f"{h['id']}. {h['title']} | {h['url']}\n   {h['snippet']}" for h in data["hits"]]
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Query", data["query"]),
            _part("Results", delimited("\n".join(hits), nonce)),
            _part("Limit", f"at most {data['limit']} results"),
        ]
    )


def _show_summarise(data: Data, nonce: str) -> str:
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Query", data["query"]),
            _part("Page", delimited(f"{data['title']}\n\n{data['text']}", nonce)),
        ]
    )


def _show_extract(data: Data, nonce: str) -> str:
    batches = [f"Query: {item['query']}\n{_evidence(item['evidence'], nonce)}" for item in data["batch"]]
    concepts = [node["name"] for node in data["nodes"] if not node["is_core"]]
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Core entities so far", delimited("\n".join(data["core"]), nonce)),
            _part("Concepts so far", delimited("\n".join(concepts), nonce)),
            _part("Evidence", "\n\n".join(batches)),
            _part("Limit", f"at most {data['max_new_concepts']} new concepts"),
        ]
    )


def _show_merge(data: Data, nonce: str) -> str:
    lines = [
        f"{c['id']}. {c['name']}" + (f" (also: {', '.join(c['aliases'])})" if c["aliases"] else "")
        for c in data["concepts"]
    ]
    return _part("Concepts", delimited("\n".join(lines), nonce))


def _show_outline_update(data: Data, nonce: str) -> str:
    nodes = "; ".join(node["name"] for node in data["graph"]["nodes"])
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Current outline", data["outline"]),
            _part("New evidence", _evidence(data["evidence"], nonce)),
            _part("Names in the knowledge graph", delimited(nodes, nonce) if nodes else ""),
            _part("Relations in the knowledge graph", _relations(data["graph"]["edges"], nonce)),
        ]
    )


def _show_kg_queries(data: Data, nonce: str) -> str:
    chains = []
    for chain in data["chains"]:
        known = f" Known: {chain['content']}." if chain["content"] else ""
        topic = "" if chain["on_topic"] else " (far from the core entities)"
        line = f"{chain['id']}. [{chain['type']}] {chain['u']} -- {chain['v']}: {chain['reason']}"
        chains.append(line + known + topic)
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Outline", data["outline"]),
            _part("Knowledge graph", delimited(data["graph"], nonce)),
            _part("Queries that were executed", _bullets(data["executed"])),
            _part("Chains", delimited("\n".join(chains), nonce)),
            _part("Limit", f"at most {data['limit']} queries"),
        ]
    )


def _show_judge(data: Data, nonce: str) -> str:
    sections = [f"{s['number']}. {s['title']}: {s['cited']}/{s['lines']} lines" for s in data["sections"]]
    counts = ", ".join(f"{name} {value}" for name, value in data["counts"].items())
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Outline", data["outline"]),
            _part("Lines with evidence", _bullets(sections)),
            _part("Numbers", counts),
        ]
    )


def _show_write(data: Data, nonce: str) -> str:
    section = data["section"]
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("What is written already", data["previous"]),
            _part("Section to write", f"{section['number']}. {section['title']}"),
            _part("Its outline", section["outline"]),
            _part("Evidence that may be cited", _evidence(data["evidence"], nonce)),
            _part("Relations that it supports", _relations(data["relations"], nonce)),
        ]
    )


def _show_digest(data: Data, nonce: str) -> str:
    return _part("Text", data["text"]) + _part("Limit", f"about {data['limit']} tokens")


def _show_linear_queries(data: Data, nonce: str) -> str:
    return "\n".join(
        [
            _part("Question", data["question"]),
            _part("Queries that were executed", _bullets(data["executed"])),
            _part("What was found", _evidence(data["evidence"], nonce)),
            _part("Limit", f"at most {data['limit']} queries"),
        ]
    )


_OUTLINE_FORM = (
    "An outline is text: headings numbered '1.', '1.1.', '1.1.1.' (three levels at most), and below a "
    "heading lines that start with '- ' and name one thing to say. Evidence is cited at the end of a line as "
    "<citation>id_4, id_7</citation>."
)
_QUERIES = _object(queries=_list(_TEXT))

ROLES: Mapping[str, Role] = {
    "outline_init": Role(
        "You plan a report that answers a question, before anything was searched. Write its outline, with "
        f"the aspects that an expert would expect, and without citations. {_OUTLINE_FORM}",
        _object(outline=_TEXT),
        _show_outline_init,
    ),
    "outline_queries": Role(
        "You search for a report. Write search queries for the lines of the outline that have no evidence "
        "yet. Ignore lines that only structure the text (introduction, conclusion), join lines of one theme "
        "into one query, repeat no executed query, and complement those that are planned.",
        _QUERIES,
        _show_outline_queries,
        1024,
    ),
    "select_urls": Role(
        "You choose which search results to read for a query: relevant ones, from different and trustworthy "
        "sources. Answer with their ids, best first.",
        _object(ids=_list(_WHOLE)),
        _show_select_urls,
        512,
    ),
    "summarise": Role(
        "You read a page for a query. Say in one sentence whether it helps (rationale), copy the passages "
        "that do word for word (evidence: whole sentences, unchanged, in the page's language), and sum them "
        "up (summary). Set useful to false if nothing helps.",
        _object(useful=_TRUTH, rationale=_TEXT, evidence=_list(_TEXT), summary=_TEXT),
        _show_summarise,
    ),
    "extract": Role(
        "You build a knowledge graph from evidence. First write the relations (edges) that the evidence "
        "states: source, target, a short verb phrase, and the numbers of the evidence (EN7 is 7) that "
        "mentions both ends. Then list new nodes. A core entity (is_core) is a concrete subject that the "
        "question asks about; everything else is a concept. Use an existing name whenever it carries at "
        "least 80 % of the meaning; prefer relations with a core entity; keep names short and abstract; make "
        "no nodes of examples, tactics or dates. Give other names of a node as aliases.",
        _object(
            nodes=_list(_object(["aliases"], name=_TEXT, is_core=_TRUTH, aliases=_list(_TEXT))),
            edges=_list(_object(source=_TEXT, target=_TEXT, relation=_TEXT, evidence=_list(_WHOLE))),
        ),
        _show_extract,
    ),
    "merge": Role(
        "You find concepts that mean the same. Group those that share at least 85 % of their meaning, two or "
        "more in a group, and name each group by its best name. Related is not the same: cause and effect, "
        "part and whole, or two kinds of one thing stay apart.",
        _object(groups=_list(_object(name=_TEXT, ids=_list(_WHOLE)))),
        _show_merge,
        2048,
    ),
    "outline_update": Role(
        "You improve the outline of a report with new evidence and a knowledge graph. Bind every line that "
        "evidence supports to the ids of that evidence (EN7 is id_7). A line that carries a citation keeps "
        "its meaning and all its ids; what contradicts it becomes a new line beside or below it. Add lines "
        "and headings for what is important and missing, compare the core entities where the graph allows "
        f"it, and never cite an id that you were not given. Answer with the whole outline. {_OUTLINE_FORM}",
        _object(outline=_TEXT),
        _show_outline_update,
        8192,
    ),
    "kg_queries": Role(
        "You decide what to search next. The chains are pairs of nodes of the knowledge graph between which "
        "knowledge is weak or missing. Choose the most valuable by relevance to the question, severity of "
        "the gap, insight from comparison, and importance as a foundation; answer with their numbers "
        "(chains) and one search query for each (queries). Unused slots may serve gaps of the outline. "
        "Repeat no query.",
        _object(chains=_list(_WHOLE), queries=_list(_TEXT)),
        _show_kg_queries,
        1024,
    ),
    "judge": Role(
        "You judge the outline of a report strictly, from 0 to 10 each: instruction (it answers what was "
        "asked), depth, balance (of its parts), breadth, support (lines with evidence), insight (comparison, "
        "causes, consequences). 8 is good enough to publish, 5 is average.",
        _object(**dict.fromkeys(RUBRIC, _NUMBER)),
        _show_judge,
        512,
    ),
    "write": Role(
        "You write one section of a report in Markdown, in flowing text, without its top heading; use ### "
        "for sub-headings. Follow its outline, say nothing twice, and end every sentence that states a fact "
        "from evidence with its ids in square brackets, [7] or [7, 9]. Cite only evidence that you were "
        "given and that says what the sentence says, with its numbers and names. Where there is no evidence "
        "for a line, leave it out. Write no links, no images and no list of references.",
        _object(text=_TEXT),
        _show_write,
        8192,
    ),
    "digest": Role(
        "You shorten the beginning of a report for the one who writes on: keep what was said about which "
        "subject, drop the wording and the citations.",
        _object(text=_TEXT),
        _show_digest,
        2048,
    ),
    "linear_queries": Role(
        "You search for a report. Reformulate the question into new search queries, given what was found so "
        "far. Repeat no executed query.",
        _QUERIES,
        _show_linear_queries,
        1024,
    ),
}
