"""Gibberish rules, lexicons and labels on fixed strings, and the judge against a local server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from assay.errors import InputError, MissingDependencyError
from assay.methods.crh import Detector, corruption, label, lexicon
from assay.methods.crh.judge import Judge

TABLE = [
    ("", "empty"),
    ("  \n ", "empty"),
    ("la la la la la la", "repeated word"),
    ("the the the the", "repeated word"),
    ("A normal, well punctuated sentence.", None),
    ("the the the dog ran", None),
    ("!!!!!!!", "repeated symbol"),
    ("Wow!!!!!! That is six.", None),
    ("#$%&*+# a b #$%&*+# c d #$", "symbols"),
    ("a b a b a b a c", "few words"),
    ("one two one two one two one two one two", "few words"),
    ("Spaces      in      a row are not symbols", None),
    ("Größe und Maß: daß es hält, ist gewiß.", None),
    ("def f(x):\n    return x + 1  # add one", None),
]


@pytest.mark.parametrize(("text", "rule"), TABLE)
def test_gibberish_rules(text, rule):
    assert corruption(text) == rule


def test_labels():
    dogs = lexicon(["dog", "puppy"])
    assert label("The dogs bark at night.", dogs) == 2
    assert label("The cat sleeps at night.", dogs) == 1
    assert label("dog dog dog dog dog", dogs) == 3
    assert dogs("PUPPY's bowl")
    assert not dogs("dogma and hotdogging")


def test_a_detector_counts_over_patterns():
    detector = Detector((r"\bsuppose\b", r"\btherefore\b"), at_least=2)
    assert not detector("Suppose it rains.")
    assert detector("Suppose it rains. Therefore the street is wet.")
    assert Detector((r"^- ",), at_least=2)("- one\n- two")


@pytest.mark.parametrize("arguments", [((),), (("(",),), (("a",), 0)])
def test_bad_detectors(arguments):
    with pytest.raises(InputError):
        Detector(*arguments)
    with pytest.raises(InputError, match="word"):
        lexicon([" "])


class _Server(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, object]] = {}
    requests: ClassVar[list[dict]] = []

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests.append(request | {"key": self.headers.get("Authorization"), "path": self.path})
        text = request["messages"][1]["content"]
        answer = next((a for part, a in self.answers.items() if part in text), "2")
        if isinstance(answer, int):
            self.send_response(answer)
            self.end_headers()
            return
        body = answer if isinstance(answer, bytes) else json.dumps(
            {"choices": [{"message": {"content": answer}}]}
        ).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    _Server.answers, _Server.requests = {}, []
    listening = HTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}/v1"
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_judge(server, tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    _Server.answers = {"broken": 500, "odd": "I cannot say 12.", "torn": b"{", "none": "1"}
    judge = Judge(server, "m", key_variable="JUDGE_KEY", cache=tmp_path, concurrency=2)
    dogs = lexicon(["dog"])
    texts = ["A fine dog here.", "no no no no", "broken dog text", "odd text here", "torn text here", "none"]
    found = judge(["q"] * 6, texts, "dogs", dogs)
    assert [(f.label, f.source) for f in found] == [
        (2, "judge"), (3, "rule"), (2, "lexicon"), (1, "lexicon"), (1, "lexicon"), (1, "judge"),
    ]  # fmt: skip
    assert judge.failures == 3
    assert {r["path"] for r in _Server.requests} == {"/v1/chat/completions"}
    assert {r["key"] for r in _Server.requests} == {"Bearer secret"}
    asked = len(_Server.requests)
    again = Judge(server, "m", cache=tmp_path)(["q"], texts[:1], "dogs", dogs)
    assert again[0].source == "judge"
    assert len(_Server.requests) == asked


def test_an_unreachable_judge_leaves_the_lexicon(server):
    judge = Judge("http://127.0.0.1:9/v1", "m", timeout=0.5)
    assert judge(["q"], ["the dog barks"], "dogs", lexicon(["dog"]))[0].source == "lexicon"
    assert judge.failures == 1


def test_bad_judges(server):
    for arguments in ({"endpoint": "ftp://x"}, {"endpoint": server, "concurrency": 0}):
        with pytest.raises(InputError):
            Judge(model="m", **arguments)
    with pytest.raises(InputError, match="questions"):
        Judge(server, "m")(["q"], ["a", "b"], "dogs", lexicon(["dog"]))


def test_the_judge_says_what_is_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match="agents"):
        Judge("http://localhost/v1", "m")
