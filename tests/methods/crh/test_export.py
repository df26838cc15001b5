"""Control vectors as other tools read and write them, and which block they mean there."""

import sys
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from assay.errors import InputError, MissingDependencyError
from assay.methods.crh import (
    Strengths,
    from_steering_vector,
    read_gguf,
    steer,
    to_steering_vector,
    write_gguf,
    write_layers,
    write_safetensors,
)
from assay.methods.crh.cylinder import Cylinder


@pytest.fixture
def cylinder():
    axis = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    axis = axis / axis.norm()
    none = torch.zeros(0, dtype=torch.float64)
    facts = {"model_type": "llama", "concept": "dogs"}
    return Cylinder(axis, 3 * axis, none.view(0, 32), none, 0, 5, 2, 0.9, None, facts)


def repeng_import(path):
    """What repeng's `import_gguf` does with a file, from its description."""
    reader = gguf.GGUFReader(path)
    hint = bytes(reader.get_field("controlvector.model_hint").parts[-1]).decode()
    architecture = bytes(reader.get_field("general.architecture").parts[-1]).decode()
    layers = {int(t.name.split(".")[1]): t.data for t in reader.tensors if t.name.startswith("direction.")}
    return architecture, hint, layers


def llama_cpp_tensor(path, block, width):
    """What llama.cpp adds to the output of `block`: its buffer begins with block 1."""
    buffer = np.zeros(0, dtype=np.float32)
    for tensor in gguf.GGUFReader(path).tensors:
        number = int(tensor.name.split(".")[1])
        assert number >= 1
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
        buffer = np.pad(buffer, (0, max(0, width * number - len(buffer))))
        buffer[width * (number - 1) : width * number] += tensor.data
    place = width * (block - 1)
    return buffer[place : place + width] if place + width <= len(buffer) else np.zeros(width, np.float32)


def test_gguf_round_trip_and_layer_numbers(cylinder, tmp_path, model):
    path = tmp_path / "v.gguf"
    write_gguf(cylinder, path, strength=2.0)
    expected = (2 * cylinder.axis).float().numpy()
    architecture, hint, layers = repeng_import(path)
    assert (architecture, hint, list(layers)) == ("controlvector", "llama", [2])
    np.testing.assert_array_equal(layers[2], expected)
    for block in range(1, 4):
        np.testing.assert_array_equal(
            llama_cpp_tensor(path, block, 32), expected if block == 2 else 0 * expected
        )
    back = read_gguf(path)
    np.testing.assert_array_equal(back.directions[2], expected)
    back.check("llama", 32, 4)
    for wrong, message in [
        (("gpt2", 32, 4), "type llama"),
        (("llama", 31, 4), "width"),
        (("llama", 32, 2), "block 2"),
    ]:
        with pytest.raises(InputError, match=message):
            back.check(*wrong)
    # repeng adds direction N to what block N returns: steering with what was read is steering along the axis.
    ids = torch.arange(6).unsqueeze(0)
    with torch.no_grad():
        with steer(model, torch.tensor(back.directions[2]), 2):
            read = model(ids).logits
        hidden = model(ids, output_hidden_states=True).hidden_states[3] + torch.tensor(expected)
        last = model.lm_head(model.model.norm(model.model.layers[3](
            hidden, position_embeddings=model.model.rotary_emb(hidden, torch.arange(6)[None])
        )))  # fmt: skip
    torch.testing.assert_close(read, last, rtol=0, atol=1e-4)


def test_the_default_strength(cylinder, tmp_path):
    write_gguf(cylinder, tmp_path / "a.gguf")
    assert np.linalg.norm(read_gguf(tmp_path / "a.gguf").directions[2]) == pytest.approx(3)
    measured = cylinder.with_strengths(Strengths(np.array([4.0, 5.0, 6.0]), np.zeros(3, bool), 9.0))
    write_gguf(measured, tmp_path / "b.gguf")
    assert np.linalg.norm(read_gguf(tmp_path / "b.gguf").directions[2]) == pytest.approx(5)


def test_bad_control_vectors(cylinder, tmp_path):
    from dataclasses import replace

    with pytest.raises(InputError, match="block 0"):
        write_gguf(replace(cylinder, layer=0), tmp_path / "v.gguf")
    with pytest.raises(InputError, match="model_type"):
        write_gguf(replace(cylinder, facts={}), tmp_path / "v.gguf")
    for write in (write_gguf, write_safetensors, write_layers):
        with pytest.raises(InputError, match="finite"):
            write(cylinder, tmp_path / "v.bin", strength=float("nan"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="does not exist"):
        read_gguf(tmp_path / "none.gguf")
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + b"\0" * 40)
    with pytest.raises(InputError, match="no GGUF control vector"):
        read_gguf(tmp_path / "junk.gguf")

    def foreign(name, architecture="controlvector", tensor="direction.1", data=None):
        writer = gguf.GGUFWriter(tmp_path / name, architecture)
        writer.add_string("controlvector.model_hint", "llama")
        writer.add_uint32("controlvector.layer_count", 1)
        writer.add_tensor(tensor, np.ones(4, np.float32) if data is None else data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    with pytest.raises(InputError, match="not a control vector"):
        read_gguf(foreign("m.gguf", architecture="llama"))
    with pytest.raises(InputError, match=r"direction\.0"):
        read_gguf(foreign("z.gguf", tensor="direction.0"))
    with pytest.raises(InputError, match="1-D"):
        read_gguf(foreign("d.gguf", data=np.ones((2, 2), np.float32)))


def test_safetensors(cylinder, tmp_path):
    write_safetensors(cylinder, tmp_path / "v.safetensors", strength=2.0)
    with safe_open(tmp_path / "v.safetensors", "pt") as file:
        torch.testing.assert_close(file.get_tensor("steering_vector"), (2 * cylinder.axis).float())
        facts = file.metadata()
    assert (facts["layer"], facts["site"], facts["operation"]) == ("2", "block_output", "add")


def test_the_exchange_with_steering_vectors(cylinder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "steering_vectors", None)
    with pytest.raises(MissingDependencyError, match="pip install steering-vectors"):
        to_steering_vector(cylinder)
    peer = SimpleNamespace(SteeringVector=lambda layer_activations, layer_type: SimpleNamespace(**locals()))
    monkeypatch.setitem(sys.modules, "steering_vectors", peer)
    vector = to_steering_vector(cylinder, strength=2.0)
    assert vector.layer_type == "decoder_block"
    torch.testing.assert_close(vector.layer_activations[2], (2 * cylinder.axis).float())
    assert list(from_steering_vector(vector)) == [2]
    vector.layer_type = "mlp"
    with pytest.raises(InputError, match="mlp"):
        from_steering_vector(vector)
    write_layers(cylinder, tmp_path / "l.safetensors", strength=2.0)
    torch.testing.assert_close(load_file(tmp_path / "l.safetensors")["2"], (2 * cylinder.axis).float())
