"""The search services, each against a server that answers in its format."""

import httpcore
import pytest

from assay.errors import InputError
from assay.methods.dualgraph.backends import KINDS, open_backend
from assay.methods.dualgraph.concurrency import search_many
from assay.methods.dualgraph.fetching import Fetcher
from assay.methods.dualgraph.records import (
    AuthenticationFailed,
    Hit,
    RateLimited,
    ReadFailed,
    SearchBackend,
    ServiceUnavailable,
)
from assay.methods.dualgraph.service_client import ServiceClient
from assay.methods.dualgraph.web_search import ENGINES, WebBackend

KEY = "key-0123456789"
ROWS = [(f"Title {i}", f"https://site{i}.example/page", f"Extract {i}.") for i in range(1, 6)]


def as_rows(names, rows=ROWS):
    return [dict(zip(names, row, strict=True)) for row in rows]


# What each service answers, from its documentation, and what it has to be asked.
ANSWERS = {
    "searxng": {
        "query": "cats",
        "number_of_results": 0,
        "results": [row | {"engine": "x", "score": 1.5} for row in as_rows(("title", "url", "content"))],
        "answers": [],
        "suggestions": [],
        "unresponsive_engines": [["y", "timeout"]],
    },
    "tavily": {
        "query": "cats",
        "answer": None,
        "images": [],
        "results": [
            row | {"score": 0.9, "raw_content": None} for row in as_rows(("title", "url", "content"))
        ],
        "response_time": 1.2,
    },
    "serper": {
        "searchParameters": {"q": "cats", "type": "search"},
        "organic": [row | {"position": i} for i, row in enumerate(as_rows(("title", "link", "snippet")), 1)],
        "peopleAlsoAsk": [],
        "credits": 1,
    },
    "brave": {
        "type": "search",
        "query": {"original": "cats"},
        "web": {
            "type": "search",
            "results": [row | {"age": "May 1"} for row in as_rows(("title", "url", "description"))],
        },
    },
    "bing": {
        "_type": "SearchResponse",
        "webPages": {"totalEstimatedMatches": 5, "value": as_rows(("name", "url", "snippet"))},
    },
}
EMPTY = {
    "searxng": {"results": []},
    "tavily": {"results": []},
    "serper": {"searchParameters": {}},
    "brave": {"type": "search"},
    "bing": {"_type": "SearchResponse"},
}
ASKED = {
    "searxng": ("GET", "/search", {"q": "cats", "format": "json"}, None, {}),
    "tavily": (
        "POST", "/search", {}, {"query": "cats", "max_results": 3}, {"authorization": f"Bearer {KEY}"},
    ),
    "serper": ("POST", "/search", {}, {"q": "cats", "num": 3}, {"x-api-key": KEY}),
    "brave": (
        "GET", "/web/search", {"q": "cats", "count": "3", "text_decorations": "0"}, None,
        {"x-subscription-token": KEY},
    ),
    "bing": (
        "GET", "/search", {"q": "cats", "count": "3", "responseFilter": "Webpages"}, None,
        {"ocp-apim-subscription-key": KEY},
    ),
}  # fmt: skip


@pytest.fixture
def backend(web):
    """A back end of a kind that asks the test's server and does not wait."""
    made = []

    def build(kind, **options):
        engine = ENGINES[kind]
        client = ServiceClient(
            engine.title, web.url, headers=engine.headers(KEY), hint=engine.hint, sleep=lambda seconds: None
        )
        made.append(WebBackend(kind, client, Fetcher(robots=False, sleep=lambda seconds: None, **options)))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ENGINES)
def test_each_service_in_its_format(web, backend, kind):
    web.answer = lambda request: ANSWERS[kind]
    service = backend(kind)
    assert isinstance(service, SearchBackend)
    hits = service.search("cats", 3)
    assert hits == [
        Hit(title, url, extract, 1 / rank, backend=kind)
        for rank, (title, url, extract) in enumerate(ROWS[:3], 1)
    ]
    request = web.requests[0]
    method, path, query, body, headers = ASKED[kind]
    assert (request.method, request.path, request.query) == (method, path, query)
    assert (request.json if request.body else None) == body
    assert headers.items() <= request.headers.items()


@pytest.mark.parametrize("kind", ENGINES)
def test_no_results_are_no_error(web, backend, kind):
    web.answer = lambda request: EMPTY[kind]
    assert backend(kind).search("cats", 3) == []


@pytest.mark.parametrize("kind", ENGINES)
def test_another_format_is_an_error(web, backend, kind):
    for answer in ([1, 2], {"results": 3, "organic": 3, "web": {"results": 3}, "webPages": {"value": 3}}):
        web.answer = lambda request, answer=answer: answer
        with pytest.raises(ServiceUnavailable, match="unknown format"):
            backend(kind).search("cats", 3)


@pytest.mark.parametrize("kind", ENGINES)
def test_failures_of_the_service(web, backend, kind, answering):
    for status, error in ((401, AuthenticationFailed), (429, RateLimited), (500, ServiceUnavailable)):
        web.answer = lambda request, status=status: answering({"message": "no"}, status=status)
        with pytest.raises(error, match=f"{ENGINES[kind].title} answered {status}: no") as raised:
            backend(kind).search("cats", 3)
        if status == 401:
            assert ENGINES[kind].hint in str(raised.value)


def test_results_that_may_not_be_fetched_are_left_out(web, backend):
    rows = [
        ("File", "file:///etc/passwd", "x"),
        ("Script", "javascript:alert(1)", "x"),
        ("Denied", "https://a.denied.example/", "x"),
        ("Nothing", "", "x"),
        ("Good", "https://good.example/a#part", "<b>x</b>\u200b y"),
        ("Again", "https://good.example/a#other", "x"),
        (None, "https://untitled.example/", None),
    ]
    web.answer = lambda request: {"results": as_rows(("title", "url", "content"), rows)}
    hits = backend("searxng", deny_hosts=["denied.example"]).search("cats", 9)
    assert [(hit.title, hit.url) for hit in hits] == [
        ("Good", "https://good.example/a"),
        ("https://untitled.example/", "https://untitled.example/"),
    ]
    assert hits[0].snippet == "<b>x</b> y"


def test_known_results_are_left_out_and_more_asked_for(web, backend):
    web.answer = lambda request: ANSWERS["tavily"]
    hits = backend("tavily").search("cats", 3, exclude={ROWS[0][1], ROWS[2][1]})
    assert [hit.title for hit in hits] == ["Title 2", "Title 4", "Title 5"]
    assert web.requests[0].json["max_results"] == 5
    backend("tavily").search("cats", 30, exclude={"x"})
    assert web.requests[1].json["max_results"] == 20


def test_queries_are_cleaned_and_cut(web, backend):
    web.answer = lambda request: EMPTY["serper"]
    service = backend("serper")
    service.search(" a\u200b\n b " + "c" * 900, 1)
    assert web.requests[0].json["q"].startswith("a b ccc")
    assert len(web.requests[0].json["q"]) == 400
    assert service.search(" \u200b ", 1) == []
    with pytest.raises(InputError, match="at least 1"):
        service.search("cats", 0)
    assert len(web.requests) == 1


def test_a_result_is_read_by_the_fetcher(web, backend):
    class Wire(httpcore.NetworkBackend):
        def connect_tcp(self, host, port, timeout=None, local_address=None, socket_options=None):
            return httpcore.SyncBackend().connect_tcp("127.0.0.1", web.port, timeout, None, socket_options)

    web.answer = lambda request: "<html><body><p>The whole page about cats.</p></body></html>"
    service = backend("searxng", network=Wire(), resolver=lambda host, port: ["93.184.215.14"])
    document = service.read(Hit("t", "http://site.example/a", "s"))
    assert document.text == "The whole page about cats."
    with pytest.raises(ReadFailed):
        backend("searxng").read(Hit("t", "http://127.0.0.1/a", "s"))


def test_keys_come_from_the_environment(web):
    for kind, engine in ENGINES.items():
        if engine.key:
            with pytest.raises(InputError, match=f"set the environment variable {engine.key}"):
                open_backend(kind, environment={})
            assert open_backend(kind, environment={engine.key: KEY}).name == kind
    web.answer = lambda request: ANSWERS["brave"]
    service = open_backend(f"brave:{web.url}", environment={"BRAVE_API_KEY": f" {KEY}\n"})
    assert [hit.title for hit in service.search("cats", 1)] == ["Title 1"]
    assert web.requests[0].headers["x-subscription-token"] == KEY
    assert service.name == f"brave:{web.url}"
    assert KEY not in repr(vars(service))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("altavista", "unknown search back end 'altavista'"),
        ("", "unknown search back end ''"),
        ("searxng", "write searxng:https://searx.example.org"),
        ("searxng:searx.example", "begins with https://"),
        ("local:", "write local:FOLDER"),
        ("local:/no/such/folder", "does not exist"),
        ("fixture:/no/such/file.jsonl", "cannot be read"),
        ("mcp:", "write mcp:COMMAND"),
    ],
)
def test_wrong_names_of_back_ends(spec, message):
    with pytest.raises(InputError, match=message):
        open_backend(spec, environment={})


def test_kinds_are_all_known(tmp_path, own_cache):
    (tmp_path / "a.txt").write_text("text")
    assert open_backend(f"local:{tmp_path}").name == f"local:{tmp_path}"
    assert {kind.partition(":")[0] for kind in KINDS} == {*ENGINES, "local", "mcp", "fixture"}


def test_a_refused_key_ends_a_round_only_when_nothing_else_answers(web, backend, answering):
    web.answer = lambda request: answering(status=401)
    with pytest.raises(AuthenticationFailed):
        search_many([backend("tavily")], ["a", "b"], k=3)

    def partly(request):
        return answering(status=401) if request.headers.get("x-api-key") else ANSWERS["tavily"]

    web.answer = partly
    outcomes = search_many([backend("tavily"), backend("serper")], ["a"], k=3)
    assert len(outcomes[0].hits) == 3
    assert "Serper answered 401" in outcomes[0].errors[0]
