"""The geometry of a cylinder in worlds where it is known, its exact inverses, and files."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from assay.errors import InputError
from assay.methods.crh import (
    DifferenceSet,
    PairsError,
    Strengths,
    baseline_directions,
    fit_cylinder,
    load_cylinder,
    save_cylinder,
)
from assay.methods.crh.directions import held_out_rank, random_direction, singular_basis


def differences(rows, absent=None, layer=3):
    absent = torch.zeros_like(rows) if absent is None else absent
    return DifferenceSet(
        (absent + rows).unsqueeze(1), absent.unsqueeze(1), (layer,), "chat", "last", ("dogs",) * len(rows)
    )


def linear_world(n=60, width=64, seed=0):
    """Differences `c_0 + sum_k a_k c_k` of five concepts with pairwise cosine 0.3."""
    generator = torch.Generator().manual_seed(seed)
    gram = torch.full((5, 5), 0.3, dtype=torch.float64).fill_diagonal_(1.0)
    frame = torch.linalg.qr(torch.randn(width, 5, generator=generator, dtype=torch.float64))[0]
    concepts = torch.linalg.cholesky(gram) @ frame.T
    others = torch.randn(n, 4, generator=generator, dtype=torch.float64) * 0.5
    return 3 * concepts[0] + others @ concepts[1:], concepts


def test_axis_and_plane_of_a_linear_world():
    rows, concepts = linear_world()
    torch.testing.assert_close(
        concepts @ concepts.T - torch.eye(5).double(), 0.3 - 0.3 * torch.eye(5).double()
    )
    cylinder = fit_cylinder(differences(rows))
    assert cylinder.axis @ concepts[0] >= 0.99  # E[d] = 3 c_0
    residuals = rows - (rows @ cylinder.axis).unsqueeze(1) * cylinder.axis
    captured = (residuals @ cylinder.basis[:4].T).square().sum() / residuals.square().sum()
    assert captured >= 0.999
    assert cylinder.rank == 4
    for axis in ("pca", "probe"):
        other = fit_cylinder(differences(rows), axis=axis)
        assert other.axis @ concepts[0] > 0.8
        assert abs(float((other.basis @ other.axis).abs().max())) < 1e-10


def test_mean_centring_is_the_mean_difference_and_signs_are_fixed():
    rows, _ = linear_world()
    absent = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    present = absent + rows
    both = torch.cat([present, absent]).mean(0)
    centred = present.mean(0) - both
    found = fit_cylinder(differences(rows, absent))
    torch.testing.assert_close(found.axis, centred / centred.norm(), rtol=0, atol=1e-6)
    for sign in (1, -1):
        directions = baseline_directions(differences(sign * rows, absent), 3, other=found)
        assert set(directions) == {"diffmean", "pca", "probe", "random", "other concept"}
        for name in ("diffmean", "pca", "probe"):
            assert float(directions[name] @ (sign * rows).mean(0)) > 0
            assert float(directions[name].norm()) == pytest.approx(1)
    with pytest.raises(InputError, match="layer 3"):
        baseline_directions(differences(rows, absent, layer=2), 2, other=found)


@pytest.fixture(scope="module")
def cylinder():
    rows, _ = linear_world(n=12)
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return fit_cylinder(
        differences(rows + 0.2 * noise), rank=5, facts={"model_type": "llama", "concept": "dogs"}
    )


@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_compose_inverts_decompose(cylinder, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    vectors = scale * torch.randn(3, 64, generator=generator, dtype=torch.float64)
    found = cylinder.decompose(vectors)
    torch.testing.assert_close(found.z**2 + found.r**2, vectors.square().sum(1), rtol=1e-10, atol=0)
    whole = cylinder.compose(found.z, found.plane, found.remainder)
    assert float((whole - vectors).norm() / vectors.norm()) < 1e-12
    inside = cylinder.compose(found.z, found.plane)
    again = cylinder.decompose(inside)
    assert float((cylinder.compose(again.z, again.plane) - inside).norm() / inside.norm()) < 1e-12
    torch.testing.assert_close(again.remainder, torch.zeros_like(vectors), rtol=0, atol=1e-10 * scale)
    torch.testing.assert_close(torch.cos(found.theta) * vectors.norm(dim=1), found.z)


def test_the_penalised_family(cylinder):
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(4, 64, generator=generator, dtype=torch.float64) + 2 * cylinder.axis
    geometry = cylinder.geometry(rows)
    torch.testing.assert_close(geometry.cosine**2 + geometry.sine**2, torch.ones(4).double())
    for row in rows:
        torch.testing.assert_close(cylinder.penalised(row, 2.5, 0.0), 2.5 * row / row.norm())
        on_axis = cylinder.penalised(row, 2.5, 1.0)
        assert float(abs(on_axis @ cylinder.axis)) == pytest.approx(float(on_axis.norm()))
    on = cylinder.geometry(3 * cylinder.axis.unsqueeze(0))
    assert bool(on.on_axis[0])
    assert float(on.normal.norm()) == 0
    assert float(cylinder.geometry(-rows[:1]).cosine[0]) == pytest.approx(-float(geometry.cosine[0]))
    with pytest.raises(InputError, match="length zero"):
        cylinder.geometry(torch.zeros(1, 64))


def test_frames_are_orthonormal_and_sectors_turn_in_them(cylinder):
    row = torch.randn(64, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    for frame in (cylinder.frame(), cylinder.frame(row)):
        rows = torch.stack([cylinder.axis, *frame])
        torch.testing.assert_close(rows @ rows.T, torch.eye(3).double(), rtol=0, atol=1e-10)
        turned = cylinder.sector_directions(frame, np.pi / 3, torch.tensor([0.0, np.pi / 2]))
        torch.testing.assert_close(turned.norm(dim=1), torch.ones(2).double())
        torch.testing.assert_close(turned @ cylinder.axis, torch.full((2,), 0.5).double())
        assert float(turned[1] @ frame[1]) == pytest.approx(np.sqrt(3) / 2)
    own = cylinder.geometry(row.unsqueeze(0)).normal[0]
    torch.testing.assert_close(cylinder.frame(row)[0], own)
    with pytest.raises(InputError, match="on the axis"):
        cylinder.frame(2 * cylinder.axis)


def test_the_rank_by_held_out_likelihood():
    generator = torch.Generator().manual_seed(0)
    frame = torch.linalg.qr(torch.randn(100, 3, generator=generator, dtype=torch.float64))[0].T
    signal = torch.randn(60, 3, generator=generator, dtype=torch.float64) * torch.tensor([6.0, 4.0, 3.0])
    noise = 0.3 * torch.randn(60, 100, generator=generator, dtype=torch.float64)
    assert held_out_rank(signal @ frame + noise, 20) == 3
    assert held_out_rank(noise, 20) == 0
    assert held_out_rank(torch.zeros(10, 5), 5) == 0


def test_a_singular_basis_agrees_with_the_svd():
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, basis = singular_basis(rows)
    _, expected, directions = torch.linalg.svd(rows, full_matrices=False)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close((basis * directions).sum(1).abs(), torch.ones(5).double())
    assert len(singular_basis(torch.cat([rows, rows]))[0]) == 5


def test_bad_fits():
    rows, _ = linear_world(n=6)
    with pytest.raises(PairsError, match=r"at least 3 distinct pairs \(got 2\)"):
        fit_cylinder(differences(rows[:2]))
    with pytest.raises(PairsError, match="the same"):
        fit_cylinder(differences(torch.zeros(4, 8)))
    with pytest.raises(InputError, match="length zero"):
        fit_cylinder(differences(torch.cat([rows, -rows])))
    with pytest.raises(InputError, match="axis"):
        fit_cylinder(differences(rows), axis="mean")
    with pytest.raises(InputError, match="rank must be 0"):
        fit_cylinder(differences(rows), rank=-1)
    with pytest.warns(UserWarning, match="rank 9 was asked for, but 6 pairs span 4 directions"):
        assert fit_cylinder(differences(rows), rank=9).rank == 4
    two = DifferenceSet(
        rows.unsqueeze(1).repeat(1, 2, 1), torch.zeros(6, 2, 64), (1, 2), "chat", "last", ("d",) * 6
    )
    with pytest.raises(InputError, match="name one of the layers 1, 2"):
        fit_cylinder(two)
    same = fit_cylinder(differences(rows[:1].repeat(5, 1)))
    assert same.rank == 0
    assert len(same.basis) == 0
    with pytest.raises(InputError, match="a plane needs 2"):
        same.frame()
    with pytest.raises(InputError, match="width 63"):
        same.decompose(torch.zeros(63))
    with pytest.raises(InputError, match="calibration"):
        same.recommend_strength()
    apart = random_direction(64, 1) * 0.01 + torch.cat([rows, -rows])
    with pytest.warns(UserWarning, match="no usable axis"):
        assert not fit_cylinder(differences(apart)).usable


def test_a_cylinder_comes_back_from_its_files(cylinder, tmp_path):
    strengths = Strengths(np.array([1.0, 2.0, 3.0]), np.array([False, False, True]), 3.0)
    generated = Strengths(
        np.array([1.0]), np.array([False]), 2.0, "generation", (1.0, 2.0), (1.0, 0.5), (0.0, 0.5)
    )
    for measured in (None, strengths, generated):
        full = cylinder if measured is None else cylinder.with_strengths(measured)
        save_cylinder(full, tmp_path / "c")
        back = load_cylinder(tmp_path / "c")
        for name in ("axis", "mean_diff", "basis", "singular"):
            assert torch.equal(getattr(back, name), getattr(full, name))
        assert (back.rank, back.layer, back.n_train, back.facts) == (full.rank, 3, 12, full.facts)
        if measured is not None:
            np.testing.assert_array_equal(back.strengths.values, measured.values)
            np.testing.assert_array_equal(back.strengths.censored, measured.censored)
            assert back.strengths.success == measured.success
            assert back.recommend_strength() == full.recommend_strength()
    with safe_open(tmp_path / "c" / "cylinder.safetensors", "pt") as file:
        assert {"axis", "basis", "singular", "mean_diff", "strengths"} <= set(file.keys())
    facts = json.loads((tmp_path / "c" / "cylinder.json").read_text())
    assert (facts["site"], facts["operation"], facts["layer"]) == ("block_output", "add", 3)


def test_damaged_files_are_refused(cylinder, tmp_path):
    folder = tmp_path / "c"
    with pytest.raises(InputError, match="holds no cylinder"):
        load_cylinder(folder)
    save_cylinder(cylinder, folder)
    path, facts = folder / "cylinder.safetensors", json.loads((folder / "cylinder.json").read_text())
    tensors = load_file(path)
    save_file(tensors | {"axis": 2 * tensors["axis"]}, path)
    with pytest.raises(InputError, match="is not what"):
        load_cylinder(folder)

    def rewrite(changed, **more):
        import hashlib

        save_file(changed, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / "cylinder.json").write_text(json.dumps(facts | {"sha256": digest} | more))

    for changed, message in [
        ({"axis": 2 * tensors["axis"]}, "unit vector"),
        ({"axis": tensors["axis"][:-1]}, "do not fit each other"),
        ({"singular": tensors["singular"] * torch.nan}, "NaN"),
    ]:
        rewrite(tensors | changed)
        with pytest.raises(InputError, match=message):
            load_cylinder(folder)
    rewrite(tensors, schema=9)
    with pytest.raises(InputError, match="schema 9"):
        load_cylinder(folder)
    (folder / "cylinder.json").write_text("{")
    with pytest.raises(InputError, match="no readable cylinder"):
        load_cylinder(folder)
