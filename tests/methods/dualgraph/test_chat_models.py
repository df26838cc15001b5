"""Chat models: the OpenAI protocol with its faults, llama.cpp's server, transformers, and their names."""

import os
import sys

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from assay.errors import InputError, MissingDependencyError
from assay.methods.dualgraph.chat_models import KINDS, open_model
from assay.methods.dualgraph.llama_server import LlamaServerChat
from assay.methods.dualgraph.openai_chat import OpenAIChat, estimated_tokens
from assay.methods.dualgraph.records import (
    AuthenticationFailed,
    ChatModel,
    ChatResult,
    ContextOverflow,
    RateLimited,
    ServiceUnavailable,
    Usage,
)
from assay.methods.dualgraph.service_client import RetryPolicy, ServiceRefused
from assay.methods.dualgraph.transformers_chat import TransformersChat

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def completion(text="Hi.", usage=(12, 3)):
    answer = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    if usage:
        answer["usage"] = {
            "prompt_tokens": usage[0],
            "completion_tokens": usage[1],
            "total_tokens": sum(usage),
        }
    return answer


@pytest.fixture
def chat(web):
    """A model at the test's server that notes its waits instead of waiting."""
    made = []

    def build(model="some-model", **options):
        waits = []
        options = {"sleep": waits.append, "headers": {"authorization": "Bearer sk-0123456789"}} | options
        made.append(OpenAIChat(model, f"{web.url}/v1", **options))
        made[-1].waits = waits
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_a_call(web, chat):
    web.answer = lambda request: completion()
    model = chat()
    assert isinstance(model, ChatModel)
    result = model.chat(ASK, temperature=0.2, max_tokens=50, role="outline", data={"secret": 1})
    assert result == ChatResult("Hi.", Usage(12, 3))
    request = web.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer sk-0123456789"
    assert request.json == {
        "model": "some-model",
        "messages": ASK,
        "max_tokens": 50,
        "temperature": 0.2,
        "stream": False,
    }


def test_a_schema_is_sent(web, chat):
    web.answer = lambda request: completion('{"a": 1}')
    chat().chat(ASK, schema=SCHEMA, role="select urls")
    assert web.requests[0].json["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "select_urls", "schema": SCHEMA},
    }


def test_what_an_endpoint_does_not_know_is_given_up_for_good(web, chat, answering):
    def answer(request):
        body = request.json
        if "max_tokens" in body:
            said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        elif "temperature" in body:
            said = "Unsupported value: 'temperature' does not support 0.7 with this model."
        elif body.get("response_format", {}).get("type") == "json_schema":
            said = "response_format json_schema is not supported"
        elif "response_format" in body:
            said = "response_format is not supported"
        else:
            return completion()
        return answering({"error": {"message": said}}, status=400)

    web.answer = answer
    model = chat()
    assert model.chat(ASK, schema=SCHEMA).text == "Hi."
    assert len(web.requests) == 5
    assert model.chat(ASK, schema=SCHEMA).text == "Hi."
    assert len(web.requests) == 6
    assert set(web.requests[-1].json) == {"model", "messages", "max_completion_tokens", "stream"}


def test_another_refusal_is_raised(web, chat, answering):
    web.answer = lambda request: answering({"error": {"message": "no such model"}}, status=404)
    with pytest.raises(ServiceRefused, match="no such model"):
        chat().chat(ASK)
    assert len(web.requests) == 1


OVERFLOWS = (
    (
        {
            "error": {
                "message": "This model's maximum context length is 8192 tokens. However, your messages "
                "resulted in 10010 tokens. Please reduce the length of the messages.",
                "code": "context_length_exceeded",
            }
        },
        400,
        8192,
        10010,
    ),
    (
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 "
            "tokens (4500 in the messages, 500 in the completion).",
        },
        400,
        4096,
        5000,
    ),
    (
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 3071,
                "n_ctx": 2048,
            }
        },
        400,
        2048,
        3071,
    ),
    ({"error": "prompt is too long"}, 413, None, None),
)


@pytest.mark.parametrize(("said", "status", "limit", "needed"), OVERFLOWS)
def test_context_overflow_in_the_words_of_several_servers(web, chat, answering, said, status, limit, needed):
    web.answer = lambda request: answering(said, status=status)
    model = chat()
    with pytest.raises(ContextOverflow) as error:
        model.chat(ASK)
    assert (error.value.limit, error.value.needed) == (limit, needed)
    if limit:
        assert model.context_tokens == limit
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("status", "error", "calls"),
    [(401, AuthenticationFailed, 1), (429, RateLimited, 3), (500, ServiceUnavailable, 3)],
)
def test_failures(web, chat, answering, status, error, calls):
    web.answer = lambda request: answering({"error": {"message": "sk-0123456789 no"}}, status=status)
    with pytest.raises(error, match=rf"{status}: \*\*\* no"):
        chat(retry=RetryPolicy(attempts=3)).chat(ASK)
    assert len(web.requests) == calls


def test_a_call_recovers(web, chat, answering):
    web.in_turn(answering(status=502), answering(status=429, headers={"retry-after": "3"}), completion())
    model = chat()
    assert model.chat(ASK).text == "Hi."
    assert model.waits[1] == 3.0


def test_a_server_that_does_not_answer_in_time(web, chat, answering):
    import threading

    over = threading.Event()

    def answer(request):
        over.wait(timeout=10)
        return completion()

    web.answer = answer
    with pytest.raises(ServiceUnavailable, match="in time"):
        chat(timeout=0.05, retry=RetryPolicy(attempts=2)).chat(ASK)
    over.set()


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{}]}, [], {"error": "x"}, 7])
def test_answers_without_a_message(web, chat, answer):
    web.answer = lambda request: answer
    with pytest.raises(ServiceUnavailable, match="without a message"):
        chat().chat(ASK)


def test_texts_in_parts_and_with_thoughts(web, chat):
    web.in_turn(
        completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        completion("<think>long\nthoughts</think>\n\nanswer"),
        completion(None),
    )
    model = chat()
    assert [model.chat(ASK).text for _ in range(3)] == ["ab", "answer", ""]


def test_missing_usage_is_estimated(web, chat):
    web.answer = lambda request: completion("x" * 40, usage=None)
    usage = chat().chat(ASK).usage
    assert usage == Usage(sum(estimated_tokens(m["content"]) + 4 for m in ASK), 10, estimated=True)
    assert estimated_tokens("") == 0
    assert estimated_tokens("北京abcd") == 3


def test_limits_of_tokens_are_kept(web, chat):
    web.answer = lambda request: completion()
    model = chat(tokens_per_minute=600)
    for _ in range(3):
        model.chat(ASK, max_tokens=585)
    # A call takes about 600 tokens, so each waits about a minute more than the one before.
    assert model.waits[0] == 0
    assert 50 < model.waits[1] < 70
    assert 110 < model.waits[2] < 130


def test_the_context_is_asked_for(web):
    variables = {"ASSAY_LLM_API_KEY": "key-for-vllm"}
    web.answer = lambda request: {
        "data": [{"id": "a", "max_model_len": 100}, {"id": "b", "max_model_len": 4096}]
    }
    model = open_model(f"openai:b@{web.url}/v1", environment=variables)
    assert model.context_tokens == 4096
    assert model.name == f"openai:b@{web.url}/v1"
    assert web.requests[0].headers["authorization"] == "Bearer key-for-vllm"
    web.answer = lambda request: {"data": [{"id": "file.gguf", "meta": {"n_ctx": 2048}}]}
    assert open_model(f"llama_cpp:{web.url}", environment={}).context_tokens == 2048
    web.answer = lambda request: {"unknown": 1}
    assert open_model(f"openai:b@{web.url}/v1", environment={}).context_tokens == 32768
    assert "authorization" not in web.requests[-1].headers
    assert OpenAIChat("gpt-4.1-mini").context_tokens == 1_000_000


def test_a_key_goes_only_where_it_belongs(web):
    keys = {"OPENAI_API_KEY": "key-of-openai", "AZURE_OPENAI_API_KEY": "key-of-azure"}
    web.answer = lambda request: {}
    open_model(f"openai:m@{web.url}/v1", environment=keys)
    assert "authorization" not in web.requests[0].headers
    open_model("openai:m", environment=keys | {"OPENAI_BASE_URL": f"{web.url}/v1"})
    assert web.requests[1].headers["authorization"] == "Bearer key-of-openai"
    model = open_model("openai:gpt-4.1", environment=keys)
    assert model.name == "openai:gpt-4.1"
    assert "key-of" not in repr(vars(model))
    with pytest.raises(InputError, match="set the environment variable OPENAI_API_KEY"):
        open_model("openai:gpt-4.1", environment={})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt-4.1", "unknown chat model 'gpt-4.1'"),
        ("", "unknown chat model"),
        ("openai:", "write openai:MODEL"),
        ("openai:@https://x.example/v1", "names no model"),
        ("openai:m@x.example", "not the address of an endpoint"),
        ("replay:/no/such.jsonl", "cannot be read"),
        ("llama_cpp:/no/such.gguf", "cannot be read"),
        ("transformers:/no/such/folder", "does not exist"),
    ],
)
def test_wrong_names_of_models(spec, message):
    with pytest.raises(InputError, match=message):
        open_model(spec, environment={})


def test_the_extractive_model_is_one():
    model = open_model("extractive")
    assert isinstance(model, ChatModel)
    assert model.name == "extractive"
    assert "extractive" in KINDS


FAKE_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "broken" in options["--model"]:
    print("error: failed to load the model"); sys.exit(1)
class Handler(BaseHTTPRequestHandler):
    asked = 0
    def log_message(self, *arguments): pass
    def answer(self, status, value):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def do_GET(self):
        Handler.asked += 1
        self.answer(200 if Handler.asked > 2 else 503, {{"status": "loading"}})
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        text = options["--ctx-size"]
        self.answer(200, {{"choices": [{{"message": {{"content": text}}}}]}})
HTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def llama_server(tmp_path, monkeypatch):
    """A program of the name llama-server on the PATH."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(FAKE_SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def gguf(folder, name):
    (folder / name).write_bytes(b"GGUF" + bytes(20))
    return folder / name


def test_a_gguf_file_is_served(llama_server, tmp_path):
    model = open_model(f"llama_cpp:{gguf(tmp_path, 'small.gguf')}", environment={})
    assert (model.name, model.context_tokens, model.concurrency) == ("llama_cpp:small.gguf", 8192, 1)
    assert model.chat(ASK).text == "8192"
    model.close()
    with pytest.raises(ServiceUnavailable):
        OpenAIChat("x", model._client.address, retry=RetryPolicy(attempts=1)).chat(ASK)


def test_a_server_that_does_not_start(llama_server, tmp_path):
    with pytest.raises(ServiceUnavailable, match="ended at once: error: failed to load the model"):
        LlamaServerChat(gguf(tmp_path, "broken.gguf"))
    (tmp_path / "text.gguf").write_text("text")
    with pytest.raises(InputError, match="is not a GGUF file"):
        LlamaServerChat(tmp_path / "text.gguf")


def test_without_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="llama-server is not on the PATH"):
        LlamaServerChat(gguf(tmp_path, "small.gguf"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random Llama with a tokenizer of bytes, saved as a checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocabulary | {"</s>": 256}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=200, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_local_model(tiny):
    model = open_model(f"transformers:{tiny}")
    assert isinstance(model, TransformersChat)
    assert isinstance(model, ChatModel)
    assert (model.name, model.context_tokens, model.concurrency) == (f"transformers:{tiny}", 200, 1)
    prompt = len("[system] Be brief.\n[user] Hello?\n")
    state = torch.get_rng_state()
    sampled = model.chat(ASK, temperature=0.9, max_tokens=20)
    assert sampled.usage.prompt_tokens == prompt
    assert 1 <= sampled.usage.completion_tokens <= 20
    assert model.chat(ASK, temperature=0.9, max_tokens=20) == sampled
    assert TransformersChat(str(tiny), seed=1).chat(ASK, temperature=0.9, max_tokens=20) != sampled
    assert torch.equal(torch.get_rng_state(), state)
    assert model.chat(ASK, temperature=0, max_tokens=5) == model.chat(ASK, temperature=0, max_tokens=5)
    assert model.chat(ASK, temperature=0, max_tokens=400).usage.completion_tokens <= 200 - prompt
    with pytest.raises(ContextOverflow) as error:
        model.chat([{"role": "user", "content": "x" * 300}], max_tokens=20)
    assert error.value.limit == 200
    assert error.value.needed == 20 + len("[user] \n") + 300


@pytest.mark.slow
def test_the_embedded_model_answers():
    """SmolLM2-135M through the same interface: plumbing, not quality."""
    model = open_model("transformers:embedded")
    result = model.chat([{"role": "user", "content": "Say hello."}], temperature=0, max_tokens=20)
    assert result.text.strip()
    assert 0 < result.usage.completion_tokens <= 20
