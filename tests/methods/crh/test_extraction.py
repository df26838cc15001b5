"""Activations against plain forward passes; templates; bad activations."""

import pytest
import torch

from assay.errors import InputError
from assay.methods.crh import ConceptPairs, PairsError, extract_differences
from assay.methods.crh.templates import encode_prompt, encode_response, pad, prompt_text

EVERY = pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "gpt2"])


@EVERY
@pytest.mark.parametrize("position", ["last", "mean"])
def test_batches_give_what_single_texts_give(models_by_family, tokenizer, pairs, family, position):
    model = models_by_family[family]
    found = extract_differences(model, tokenizer, pairs, [0, 2], position=position, batch_size=5)
    assert found.layers == (0, 2)
    for i in (0, 5, 11):
        for states, text in (
            (found.with_concept, pairs[i].resp_with_concept),
            (found.without_concept, pairs[i].resp_no_concept),
        ):
            prompt, response = encode_response(tokenizer, "chat", pairs[i].question, text)
            with torch.no_grad():
                hidden = model(torch.tensor([prompt + response]), output_hidden_states=True).hidden_states
            for column, layer in enumerate((0, 2)):
                state = hidden[layer + 1][0]
                expected = state[-1] if position == "last" else state[len(prompt) :].mean(0)
                torch.testing.assert_close(states[i, column], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.differences(2), found.at(2)[0] - found.at(2)[1], rtol=0, atol=0)


def test_a_shared_text_is_read_once_and_blocks_above_are_not_computed(model, tokenizer, pairs, hooks):
    rows = [pairs[0], pairs[0].__class__(**{**pairs[0].__dict__, "resp_with_concept": "Dogs nap."})]
    read = []
    above = model.model.layers[3].register_forward_hook(lambda *a: read.append(1))
    done = []
    extract_differences(
        model, tokenizer, ConceptPairs(tuple(rows)), [1], on_batch=lambda d, t: done.append((d, t))
    )
    above.remove()
    assert done == [(3, 3)]
    assert not read
    assert hooks(model) == 0


def test_subset(model, tokenizer, pairs):
    found = extract_differences(model, tokenizer, pairs)
    assert found.layers == (2, 3)
    part = found.subset([3, 1])
    assert torch.equal(part.with_concept[0], found.with_concept[3])
    assert len(part) == 2
    with pytest.raises(InputError, match="layer 0 was not read; there are 2, 3"):
        found.at(0)


def test_templates(tokenizer):
    assert prompt_text(tokenizer, "chat", "Hi?") == "[user] Hi?\n[assistant]\n"
    assert prompt_text(tokenizer, "crh", "Hi?") == "User: Hi?\nAssistant: "
    # The space before the answer belongs to the answer's first token.
    prompt, response = encode_response(tokenizer, "crh", "Hi?", "Yes")
    assert tokenizer.decode(prompt) == "User: Hi?\nAssistant:"
    assert tokenizer.decode(response) == " Yes"
    assert encode_prompt(tokenizer, "crh", "Hi?") == prompt
    assert prompt_text(tokenizer, "Q {question} A {response}", "a{b}") == "Q a{b} A "
    for wrong in ("no parts", "{response} {question}", "{question}"):
        with pytest.raises(InputError, match="template"):
            prompt_text(tokenizer, wrong, "Hi?")
    with pytest.raises(InputError, match="adds no token"):
        encode_response(tokenizer, "chat", "Hi?", "")


def test_a_response_that_merges_with_its_prompt(tokenizer):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet | {":Y": 256}, merges=[(":", "Y")]))
    core.decoder = decoders.ByteLevel()
    merging = PreTrainedTokenizerFast(tokenizer_object=core)
    with pytest.raises(InputError, match="merges with the end of the prompt"):
        encode_response(merging, "{question}:{response}", "Hi", "Yes")
    with pytest.raises(InputError, match="no chat template"):
        prompt_text(merging, "chat", "Hi")


def test_padding():
    ids, mask = pad([[1, 2], [3]], 9, left=True)
    assert ids.tolist() == [[1, 2], [9, 3]]
    assert mask.tolist() == [[1, 1], [0, 1]]


def test_bad_input(model, tokenizer, pairs):
    with pytest.raises(PairsError, match="no pairs"):
        extract_differences(model, tokenizer, ConceptPairs(()))
    with pytest.raises(InputError, match="position"):
        extract_differences(model, tokenizer, pairs, position="first")
    with pytest.raises(InputError, match="layer 7 does not exist"):
        extract_differences(model, tokenizer, pairs, [7])
    long = pairs[0].__class__("q" * 120, "dogs", "a", "b")
    with pytest.raises(InputError, match="the model has positions for 96"):
        extract_differences(model, tokenizer, ConceptPairs((long,)))


def test_nan_activations_name_layer_and_pair(model, tokenizer, pairs):
    import copy

    broken = copy.deepcopy(model)
    token = tokenizer(pairs[3].resp_with_concept)["input_ids"][-1]
    # Only texts that end in this token, or hold it, overflow.
    with torch.no_grad():
        broken.model.embed_tokens.weight[token] = torch.inf
    with pytest.raises(InputError, match=r"activation of pair \d+ \(with the concept\) at layer 1 is NaN"):
        extract_differences(broken, tokenizer, pairs, [1])
