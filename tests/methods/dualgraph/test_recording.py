"""Records of searches and of models, and their replay."""

import hashlib
import json
import threading

import pytest

from assay.errors import InputError
from assay.methods.dualgraph.backends import open_backend
from assay.methods.dualgraph.chat_models import open_model
from assay.methods.dualgraph.checkers import load_checker
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.extractive import ExtractiveModel
from assay.methods.dualgraph.recording import RecordingBackend, RecordingChat, ReplayBackend, ReplayChat
from assay.methods.dualgraph.records import (
    ChatModel,
    ChatResult,
    Document,
    Hit,
    ReadFailed,
    ResearchConfig,
    SearchBackend,
    ServiceUnavailable,
    Usage,
)
from assay.methods.dualgraph.research_run import research

HITS = [
    Hit(f"Title {i}", f"https://x.example/{i}", "naïve 北京", 1 / (i + 1), (i, i + 5), "inner")
    for i in range(9)
]


class Inner:
    """A back end with nine results for every query, of which the last cannot be read."""

    name = "inner"

    def __init__(self):
        self.hits = list(HITS)

    def search(self, query, k, *, exclude=()):
        if query == "down":
            raise ServiceUnavailable("down")
        return [hit for hit in self.hits if hit.key not in exclude][:k]

    def read(self, hit):
        if hit.url.endswith("8"):
            raise ReadFailed("gone")
        text = f"Text of {hit.title}"
        return Document(hit.url, hit.title, text, hashlib.sha256(text.encode()).hexdigest(), (0, 3))


class Model:
    name = "model"
    context_tokens = 1000
    concurrency = 3

    def __init__(self):
        self.calls = 0

    def chat(self, messages, *, schema=None, temperature=0.7, max_tokens=4096, role="", data=None):
        self.calls += 1
        return ChatResult(f"answer {self.calls}", Usage(10, self.calls, estimated=True))


def test_searches_are_recorded_and_replayed(tmp_path):
    file = tmp_path / "deep" / "search.jsonl"
    recording = RecordingBackend(Inner(), file)
    assert isinstance(recording, SearchBackend)
    hits = recording.search("cats", 3, exclude={HITS[0].key})
    assert hits == HITS[1:4]
    documents = [recording.read(hit) for hit in hits]
    with pytest.raises(ReadFailed):
        recording.read(HITS[8])
    with pytest.raises(ServiceUnavailable):
        recording.search("down", 3)

    replay = open_backend(f"fixture:{file}")
    assert isinstance(replay, SearchBackend)
    assert replay.name == f"fixture:{file}"
    found = replay.search("cats", 3, exclude={HITS[0].key})
    assert [(hit.key, hit.title, hit.snippet, hit.score) for hit in found] == [
        (hit.key, hit.title, hit.snippet, hit.score) for hit in hits
    ]
    assert {hit.backend for hit in found} == {replay.name}
    assert [replay.read(hit) for hit in found] == documents
    # What another run leaves out or asks for in another number is answered as well.
    assert [hit.key for hit in replay.search("cats", 9)] == [hit.key for hit in HITS]
    with pytest.raises(ReadFailed, match="gone"):
        replay.read(HITS[8])
    with pytest.raises(ReadFailed, match="does not hold"):
        replay.read(HITS[7])
    for query in ("down", "dogs"):
        with pytest.raises(ServiceUnavailable, match="holds no answer"):
            replay.search(query, 3)
    with pytest.raises(InputError, match="at least 1"):
        replay.search("cats", 0)


def test_a_later_recording_comes_first(tmp_path):
    inner = Inner()
    recording = RecordingBackend(inner, tmp_path / "a.jsonl")
    inner.hits = HITS[:3]
    recording.search("cats", 5)
    inner.hits = HITS[2:5]
    recording.search("cats", 5)
    replay = ReplayBackend(tmp_path / "a.jsonl")
    assert [hit.title for hit in replay.search("cats", 9)] == [HITS[i].title for i in (2, 3, 4, 0, 1)]


def test_more_is_asked_for_when_much_is_left_out(tmp_path):
    inner = Inner()
    inner.hits = [Hit(str(i), f"https://x.example/{i}", "") for i in range(60)]
    recording = RecordingBackend(inner, tmp_path / "a.jsonl")
    exclude = {hit.key for hit in inner.hits[:30]}
    assert recording.search("cats", 2, exclude=exclude) == inner.hits[30:32]


def test_answers_are_recorded_and_replayed(tmp_path):
    file = tmp_path / "chat.jsonl"
    recording = RecordingChat(Model(), file)
    assert isinstance(recording, ChatModel)
    assert (recording.name, recording.context_tokens, recording.concurrency) == ("model", 1000, 3)
    plain = [{"role": "user", "content": "Hi"}]
    first = recording.chat(plain, role="judge", data={"a": [1, None], "b": "北"})
    again = recording.chat(plain, role="judge", data={"a": [1, None], "b": "北"})
    bare = recording.chat(plain)

    replay = open_model(f"replay:{file}")
    assert isinstance(replay, ChatModel)
    # The messages of a run hold its delimiters, so they do not decide; role and data do.
    other = [{"role": "user", "content": "Other words"}]
    call = {"role": "judge", "data": {"b": "北", "a": [1, None]}}
    assert [replay.chat(other, **call) for _ in range(3)] == [first, again, again]
    assert replay.chat(plain, temperature=0.1) == bare
    for wrong in ({"role": "judge", "data": {"a": 2}}, {"role": "write", "data": call["data"]}, {}):
        with pytest.raises(ServiceUnavailable, match="holds no answer"):
            replay.chat(other, **wrong)


def test_torn_lines_are_dropped(tmp_path):
    file = tmp_path / "a.jsonl"
    RecordingBackend(Inner(), file).search("cats", 3)
    whole = file.read_text()
    file.write_text(whole + whole.replace("cats", "dogs")[:-30])
    assert len(ReplayBackend(file).search("cats", 9)) == 9
    RecordingBackend(Inner(), file).search("birds", 3)
    replay = ReplayBackend(file)
    assert len(replay.search("birds", 9)) == 9
    with pytest.raises(ServiceUnavailable):
        replay.search("dogs", 9)


def test_many_threads_record_whole_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    recording = RecordingBackend(Inner(), file)
    threads = [
        threading.Thread(target=lambda i=i: [recording.search(f"q{i}-{j}", 3) for j in range(10)])
        for i in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({json.loads(line)["query"] for line in file.read_text().splitlines()}) == 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n', "line 1 of .* is not a recorded search"),
        ("[1]\n", "line 1 of .* is not a recorded search"),
        ('{"query": "q"}\n', "line 1 of .* is damaged"),
        ('{"query": "q", "hits": [{"title": "t"}]}\n', "line 1 of .* is damaged"),
        ('{"url": "u", "document": {"text": "t"}}\n', "line 1 of .* is damaged"),
        ("", "holds no recorded search"),
        ("torn", "holds no recorded search"),
    ],
)
def test_files_that_are_no_records(tmp_path, content, message):
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        ReplayBackend(file)


def test_files_that_are_no_records_of_a_model(tmp_path):
    file = tmp_path / "a.jsonl"
    for content, message in (
        ('{"call": "x"}\n', "line 1 of .* is damaged"),
        ('{"call": "x", "text": "t", "usage": {"unknown": 1}}\n', "line 1 of .* is damaged"),
        ('{"query": "q", "hits": []}\n', "holds no recorded answer"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=message):
            ReplayChat(file)
    with pytest.raises(InputError, match="cannot be read"):
        ReplayChat(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        RecordingChat(Model(), file / "below" / "a.jsonl")


def test_a_run_is_repeated_from_its_record(tmp_path, own_cache):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "engine.txt").write_text(
        "The Zorvan engine drives the Quillon pump. The Zorvan engine is loud."
    )
    (folder / "pump.txt").write_text("The Quillon pump sends oil to the Zorvan engine. The pump is blue.")
    encoder = HashedWords(128)
    settings = {
        "config": ResearchConfig(max_iter=2, kg_queries=3, og_queries=3, checker="lexical"),
        "encoder": encoder,
        "checker": load_checker("lexical"),
    }
    question = "How do the Zorvan engine and the Quillon pump work together?"
    recorded = research(
        question,
        llm=RecordingChat(ExtractiveModel(encoder=encoder), tmp_path / "chat.jsonl"),
        search=[RecordingBackend(open_backend(f"local:{folder}"), tmp_path / "search.jsonl")],
        **settings,
    )
    for file in folder.iterdir():
        file.unlink()
    names = {"llm": f"replay:{tmp_path}/chat.jsonl", "search": [f"fixture:{tmp_path}/search.jsonl"]}
    repeated = research(question, **names, **settings)
    assert "[1]" in recorded.report
    assert repeated.report == recorded.report
    assert repeated.evidence == recorded.evidence
