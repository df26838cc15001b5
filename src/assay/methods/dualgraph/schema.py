"""The tables of a run's database."""

from __future__ import annotations

VERSION = 1

TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, question TEXT NOT NULL, config TEXT NOT NULL, status TEXT NOT NULL,
    nonce TEXT NOT NULL, bound INTEGER NOT NULL, used_nodes INTEGER NOT NULL,
    used_edges INTEGER NOT NULL, seconds REAL NOT NULL DEFAULT 0
);
CREATE TABLE steps (
    run INTEGER NOT NULL, iteration INTEGER NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL,
    payload TEXT NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (run, iteration, name, key)
);
CREATE TABLE queries (
    id INTEGER PRIMARY KEY, iteration INTEGER NOT NULL, text TEXT NOT NULL, origin TEXT NOT NULL,
    hits INTEGER NOT NULL, evidence INTEGER NOT NULL, errors TEXT NOT NULL
);
CREATE TABLE seen (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE documents (
    sha256 TEXT PRIMARY KEY, url TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, pages TEXT NOT NULL
);
CREATE TABLE evidence (
    id INTEGER PRIMARY KEY, source_title TEXT NOT NULL, source_url TEXT NOT NULL, content TEXT NOT NULL,
    span_start INTEGER NOT NULL, span_end INTEGER NOT NULL, sha256 TEXT NOT NULL, query_id INTEGER NOT NULL,
    page INTEGER, suspect INTEGER NOT NULL
);
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, is_core INTEGER NOT NULL, aliases TEXT NOT NULL,
    community_id INTEGER, cluster_id INTEGER
);
CREATE TABLE edges (
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL, target INTEGER NOT NULL, relation TEXT NOT NULL
);
CREATE TABLE edge_evidence (
    edge INTEGER NOT NULL, evidence INTEGER NOT NULL, PRIMARY KEY (edge, evidence)
) WITHOUT ROWID;
CREATE TABLE sections (
    id INTEGER PRIMARY KEY, number TEXT NOT NULL, title TEXT NOT NULL, parent INTEGER, points TEXT NOT NULL
);
CREATE TABLE section_evidence (
    section INTEGER NOT NULL, place INTEGER NOT NULL, rank INTEGER NOT NULL, evidence INTEGER NOT NULL,
    PRIMARY KEY (section, place, rank)
) WITHOUT ROWID;
CREATE TABLE chains (
    iteration INTEGER NOT NULL, rank INTEGER NOT NULL, type TEXT NOT NULL, u INTEGER NOT NULL,
    v INTEGER NOT NULL, u_name TEXT NOT NULL, v_name TEXT NOT NULL, score REAL NOT NULL, reason TEXT NOT NULL,
    content TEXT NOT NULL, on_topic INTEGER NOT NULL, PRIMARY KEY (iteration, rank)
);
CREATE TABLE visited (
    u INTEGER NOT NULL, v INTEGER NOT NULL, type TEXT NOT NULL, PRIMARY KEY (u, v, type)
) WITHOUT ROWID;
CREATE TABLE rounds (iteration INTEGER PRIMARY KEY, numbers TEXT NOT NULL);
CREATE TABLE report_sections (number TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE citations (
    id INTEGER PRIMARY KEY, section TEXT NOT NULL, sentence TEXT NOT NULL, evidence_id INTEGER NOT NULL,
    url TEXT NOT NULL, status TEXT NOT NULL, quote_overlap REAL NOT NULL, score REAL NOT NULL,
    checker TEXT NOT NULL
);
CREATE TABLE warnings (name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE llm_calls (
    hash TEXT PRIMARY KEY, step TEXT NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL, answer TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, estimated INTEGER NOT NULL, usd REAL,
    seconds REAL NOT NULL
);
"""

NOT_REPEATABLE = {
    "runs": ("nonce", "seconds"),
    "steps": ("seconds",),
    "llm_calls": ("hash", "seconds"),
}
"""Columns that differ between two runs of the same question over the same material."""
