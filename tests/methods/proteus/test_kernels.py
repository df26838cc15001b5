"""The kernels against the plain torch reference: the same integers in every backend and instruction set."""

import os
import re
import shutil
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.proteus import kernels
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.kernels import cpu, native, numba_kernels, reference
from assay.methods.proteus.trellis import Trellis, pack, unpack

GENERATORS = [
    Generator(0x83DCD12D, 0, 0, (1, 1, 1, 1)),
    Generator(0x9E3779B1, 0xFEDCBA98, 15, (1, -1, 1, -1)),
    Generator(0xFFFFFFFF, 0xFFFFFFFF, 31, (-1, -1, -1, -1)),
    Generator(0xB3CACCF3, 1, 1, (1, -1, -1, -1)),
]


def packed(row_tiles, column_tiles, bits, seed=0):
    """Any bytes are tail-biting sequences."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (row_tiles, column_tiles, 32 * bits), dtype=torch.uint8, generator=random)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def backends():
    try:
        library = native.native_kernels().library
    except native.CompilationError:
        return [numba_kernels]
    best = library.proteus_instructions()
    return [numba_kernels, *(native.NativeKernels(library, level) for level in range(best + 1))]


BACKENDS = backends()
by_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


# ---------------------------------------------------------------------------------------------- the reference


def test_reference_is_the_window_formula():
    """The state of weight p is the window of L bits at bit K p of the circular little-endian stream."""
    for bits, window in ((2, 16), (3, 11), (4, 5)):
        tile = packed(1, 1, bits)
        stream = int.from_bytes(bytes(tile.flatten().tolist()), "little")
        length = 256 * bits
        doubled = stream | stream << length
        generator = GENERATORS[1]
        codes = reference.unpack_codes(tile, generator, window, bits)
        for row in range(16):
            for column in range(16):
                state = (doubled >> (bits * (16 * column + row))) & ((1 << window) - 1)
                assert codes[row, column] == generator.raw(torch.tensor(state))


def test_encoded_states_come_back_in_matrix_order():
    trellis = Trellis(12, 2)
    states = unpack(packed(2, 3, 2, seed=4).flatten(0, 1), trellis)
    qweight = pack(states, trellis).view(2, 3, 64)
    codes = kernels.unpack_codes(qweight, GENERATORS[0].record(), 12, 2)
    # Position p = 16 column + row of a tile is step T - 1 - p of its sequence.
    assert codes[16 + 5, 32 + 7] == GENERATORS[0].raw(states[3 * 1 + 2, 255 - (16 * 7 + 5)])


def test_quantized_activations():
    x = torch.zeros(2, 48)
    x[0, 3], x[0, 4], x[0, 5] = 2.0, -1.0, 2.0 / 127 * 2.5  # half an integer: to even
    x[1, 20] = float("inf")
    x[1, 40] = 1e-38
    quantized, scale = reference.quantize_activations(x)
    assert quantized[0, 3:6].tolist() == [127, -64, 2]
    assert scale[0].tolist() == pytest.approx([2 / 127, 0, 0])
    assert scale[1, 1].isnan()
    assert scale[1, 2] == 0
    assert not quantized[1].any()


# ------------------------------------------------------------------------------------------- the fast kernels


@by_backend
@settings(max_examples=25, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4]),
    window=st.integers(4, 16),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    multiplier=st.integers(0, 2**31 - 1).map(lambda number: 2 * number + 1),
    addend=st.integers(0, 2**32 - 1),
    shift=st.integers(0, 31),
    signs=st.tuples(*[st.sampled_from([-1, 1])] * 4),
    batch=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_reference(
    backend, bits, window, shape, multiplier, addend, shift, signs, batch, seed
):
    generator = Generator(multiplier, addend, shift, signs)
    qweight = packed(*shape, bits, seed)
    codes = reference.unpack_codes(qweight, generator, window, bits)
    assert torch.equal(backend.unpack_codes(qweight, generator, window, bits), codes)
    assert torch.equal(backend.unpack_transposed(qweight, generator, window, bits), codes.T.to(torch.float32))
    x = normal(batch, 16 * shape[1], seed=seed)
    for int8 in (False, True):
        expected = reference.matvec(qweight, generator, window, bits, x, int8=int8)
        actual = backend.matvec(qweight, generator, window, bits, x, int8=int8)
        bound = 1020 * x.abs().sum(-1, keepdim=True) * 1e-6
        assert ((actual - expected).abs() <= bound).all()


@by_backend
@pytest.mark.parametrize("generator", GENERATORS, ids=str)
def test_integer_sums_are_exact(backend, generator):
    """Activations that the float and the int8 paths hold exactly give exactly the integer product."""
    qweight = packed(3, 2, 2)
    random = torch.Generator().manual_seed(5)
    x = torch.randint(-127, 128, (5, 32), generator=random)
    x[:, ::16] = 127  # so that the scale is 1
    x[1] = -127
    expected = (x @ reference.unpack_codes(qweight, generator, 16, 2).T.to(torch.int64)).to(torch.float32)
    for int8 in (False, True):
        assert torch.equal(
            backend.matvec(qweight, generator, 16, 2, x.to(torch.float32), int8=int8), expected
        )


@by_backend
def test_rows_of_a_batch_do_not_depend_on_each_other(backend):
    qweight, x = packed(2, 5, 2), normal(9, 80)
    for int8 in (False, True):
        together = backend.matvec(qweight, GENERATORS[1], 16, 2, x, int8=int8)
        alone = torch.cat([backend.matvec(qweight, GENERATORS[1], 16, 2, row[None], int8=int8) for row in x])
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-2)


@by_backend
def test_not_a_number_is_not_hidden(backend):
    qweight, x = packed(2, 2, 2), normal(2, 32)
    x[0, 3], x[1, 31] = float("nan"), float("-inf")
    for int8 in (False, True):
        assert not backend.matvec(qweight, GENERATORS[0], 16, 2, x, int8=int8).isfinite().any()


@by_backend
def test_zero_and_tiny_activations(backend):
    qweight = packed(1, 2, 2)
    for value in (0.0, 1e-38, 1e-30):
        x = torch.full((1, 32), value)
        out = backend.matvec(qweight, GENERATORS[0], 16, 2, x, int8=True)
        expected = reference.matvec(qweight, GENERATORS[0], 16, 2, x, int8=True)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-34)


def test_int8_activations_lose_little():
    """All-plus values have a mean of 3.5 standard deviations, which must not multiply the rounding."""
    qweight, x = packed(8, 36, 2), normal(4, 576)
    for generator in GENERATORS:
        record = generator.record()
        exact = kernels.matvec(qweight, record, 16, 2, x)
        rounded = kernels.matvec(qweight, record, 16, 2, x, activations="int8")
        spread = exact - exact.mean(dim=1, keepdim=True)
        assert (rounded - exact).norm() < 0.01 * spread.norm()


# -------------------------------------------------------------------------------------- threads and processes


@pytest.fixture
def compiled():
    try:
        kernels_ = native.native_kernels()
    except native.CompilationError as error:
        pytest.skip(str(error))
    yield kernels_
    native.share_openmp(kernels_.library)
    torch.set_num_threads(1)


@pytest.mark.parametrize("openmp", [True, False], ids=["openmp", "own pool"])
def test_threads_change_nothing(compiled, openmp):
    if openmp:
        native.share_openmp(compiled.library)
    else:
        compiled.library.use_openmp(None)
    qweight, x = packed(40, 40, 2), normal(3, 640)
    torch.set_num_threads(1)
    expected = [compiled.matvec(qweight, GENERATORS[1], 16, 2, x, int8=int8) for int8 in (False, True)]
    torch.set_num_threads(3)
    for _ in range(20):
        for int8 in (False, True):
            assert torch.equal(compiled.matvec(qweight, GENERATORS[1], 16, 2, x, int8=int8), expected[int8])
    failures = []

    def call():
        for _ in range(10):
            if not torch.equal(compiled.matvec(qweight, GENERATORS[1], 16, 2, x, int8=True), expected[1]):
                failures.append(1)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


FORK = """
import os, torch
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.kernels import native
kernels = native.native_kernels()
kernels.library.use_openmp(None)
torch.set_num_threads(2)
qweight = torch.zeros(40, 40, 64, dtype=torch.uint8)
product = lambda: kernels.matvec(qweight, Generator(5, 3), 16, 2, torch.ones(1, 640), int8=True)
before = product()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(product(), before) else 1)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_gets_a_pool_of_its_own(compiled):
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split() == ["child", "0"], done.stderr


# ------------------------------------------------------------------------------------------------ compilation


def test_two_processes_compile_once(tmp_path, compiled):
    """The second waits for the first, takes its build, and nothing half-made is left."""
    source = tmp_path / "tiny.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    program = (
        "import sys, pathlib; from assay.methods.proteus.kernels.native import load_library; "
        "print(load_library(pathlib.Path(sys.argv[1])).answer())"
    )
    environment = os.environ | {"ASSAY_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", program, str(source)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate(timeout=200)[0].strip() for process in running] == ["42", "42"]
    builds = [path for path in (tmp_path / "cache" / "proteus-kernels").iterdir() if path.is_dir()]
    assert len(builds) == 1


def test_a_compiler_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "broken.cpp"
    source.write_text("int f() { return undeclared; }\n")
    try:
        native._compiler()
    except native.CompilationError as error:
        pytest.skip(str(error))
    with pytest.raises(native.CompilationError, match="undeclared"):
        native.load_library(source)


def test_without_a_compiler_numba_decodes_and_one_warning_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    native.native_kernels.cache_clear()
    cpu.cpu_kernels.cache_clear()
    try:
        with pytest.warns(UserWarning, match="ten times slower.*no C\\+\\+ compiler"):
            codes = kernels.unpack_codes(packed(1, 1, 2), GENERATORS[0].record(), 16, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kernels.matvec(packed(1, 1, 2), GENERATORS[0].record(), 16, 2, normal(1, 16))
        assert kernels.backend("cpu").startswith("numba: no C++ compiler")
        assert torch.equal(codes, reference.unpack_codes(packed(1, 1, 2), GENERATORS[0], 16, 2))
        monkeypatch.setitem(sys.modules, "assay.methods.proteus.kernels.numba_kernels", None)
        monkeypatch.delattr(kernels, "numba_kernels")
        cpu.cpu_kernels.cache_clear()
        with pytest.warns(UserWarning, match="plain torch"):
            assert kernels.backend("cpu").startswith("torch")
    finally:
        native.native_kernels.cache_clear()
        cpu.cpu_kernels.cache_clear()


def test_an_unwritable_cache_is_no_failure(tmp_path, monkeypatch, compiled):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ASSAY_CACHE", str(blocked / "cache"))
    source = tmp_path / "tiny.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    with pytest.raises(native.CompilationError, match="can't be stored"):
        native.load_library(source)


# --------------------------------------------------------------------------------------------------- dispatch


def test_large_batches_and_gradients_take_the_dense_product():
    qweight, record = packed(3, 5, 2), GENERATORS[1].record()
    codes = kernels.unpack_codes(qweight, record, 12, 2).to(torch.float32)
    x = normal(kernels.DENSE_ROWS + 3, 80)
    torch.testing.assert_close(kernels.matvec(qweight, record, 12, 2, x), x @ codes.T, rtol=1e-5, atol=1e-2)
    few = normal(2, 80).requires_grad_()
    kernels.matvec(qweight, record, 12, 2, few).sum().backward()
    torch.testing.assert_close(few.grad, codes.sum(0).expand(2, -1), rtol=1e-5, atol=1e-2)


def test_panels_cover_the_matrix(monkeypatch):
    monkeypatch.setattr(kernels, "PANEL", 256 * 5 * 2)
    qweight, record, x = packed(5, 5, 3), GENERATORS[2].record(), normal(kernels.DENSE_ROWS, 80)
    codes = kernels.unpack_codes(qweight, record, 12, 3).to(torch.float32)
    torch.testing.assert_close(kernels.matvec(qweight, record, 12, 3, x), x @ codes.T, rtol=1e-5, atol=1e-2)


def test_other_types_and_strides_of_activations():
    qweight, record, x = packed(2, 2, 2), GENERATORS[0].record(), normal(3, 32)
    exact = kernels.matvec(qweight, record, 16, 2, x)
    assert torch.equal(kernels.matvec(qweight, record, 16, 2, x.double()), exact)
    assert torch.equal(kernels.matvec(qweight, record, 16, 2, x.T.contiguous().T), exact)
    half = kernels.matvec(qweight, record, 16, 2, x.to(torch.bfloat16))
    assert half.dtype == torch.float32
    assert kernels.matvec(qweight, record, 16, 2, x[:0]).shape == (0, 32)


def test_backend_names_the_kernels():
    assert kernels.backend("cuda") == "Triton"
    assert kernels.backend("mps").startswith("torch")
    assert kernels.backend().split(":")[0] in {backend.name for backend in BACKENDS}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qweight": packed(2, 2, 2).int()}, "must be uint8"),
        ({"qweight": packed(2, 2, 2)[0]}, "must be uint8 of shape"),
        ({"qweight": packed(2, 2, 3)}, r"columns / 16, 64\]"),
        ({"qweight": packed(2, 2, 2)[:0]}, "must be uint8 of shape"),
        ({"qweight": packed(2, 2, 2).transpose(0, 1)}, "not contiguous"),
        ({"record": GENERATORS[0].record()[:7]}, "generator record"),
        ({"record": GENERATORS[0].record().long()}, "generator record"),
        ({"record": torch.zeros(8, dtype=torch.int32)}, "multiplier 0"),
        ({"window": 17}, "window 17"),
        ({"window": 3}, "window 3"),
        ({"bits": 5}, "5 bits a weight"),
        ({"x": torch.ones(1, 31)}, r"\[batch, 32\]"),
        ({"x": torch.ones(32)}, r"\[batch, 32\]"),
        ({"x": torch.ones(1, 32, dtype=torch.int64)}, "floating-point"),
        ({"x": torch.ones(1, 32, device="meta")}, "meta"),
        ({"activations": "int4"}, "'int4'"),
    ],
)
def test_bad_input(change, message):
    arguments = {
        "qweight": packed(2, 2, 2),
        "record": GENERATORS[0].record(),
        "window": 16,
        "bits": 2,
        "x": torch.ones(1, 32),
    }
    with pytest.raises(InputError, match=message):
        kernels.matvec(**(arguments | change))
    if not change.keys() & {"x", "activations"}:
        del arguments["x"]
        with pytest.raises(InputError, match=message):
            kernels.unpack_codes(**(arguments | change))


# --------------------------------------------------------------------------------------------------- no table


def test_decoding_needs_no_table():
    """Claim C1: no gather and no array of code values in a decode source; nothing grows with the window."""
    folder = native.SOURCES.parent
    sources = {path.name: path.read_text() for path in [*native.SOURCES.iterdir(), *folder.glob("*.py")]}
    assert {
        "avx512.hpp",
        "avx2.hpp",
        "portable.hpp",
        "gpu.py",
        "numba_kernels.py",
        "reference.py",
    } <= sources.keys()
    for name, text in sources.items():
        found = re.search(r"gather|table[(\[]|\blut|index_select|take\(|arange\(1 <<", text.lower())
        assert not found, (name, found)
    # All that a product gets besides activations: packed bits and eight integers, whatever the window.
    for window in (4, 16):
        qweight, record = packed(2, 3, 2), GENERATORS[0].record()
        assert 8 * qweight.numel() == 2 * 32 * 48
        assert record.numel() == 8
        assert kernels.unpack_codes(qweight, record, window, 2).shape == (32, 48)


def test_compiled_kernels_hold_no_gather_instruction(compiled):
    if not shutil.which("objdump"):
        pytest.skip("no objdump here")
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", compiled.library._name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "proteus_matvec" in listing
    assert "gather" not in listing
