"""The Triton kernels in Triton's interpreter, on tensors of the CPU: the same integers as the reference."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

# The interpreter is chosen when triton is imported: in a process of its own.
PROGRAM = """
import torch
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.kernels import gpu, reference

random = torch.Generator().manual_seed(0)
cases = [
    (2, 16, Generator(0x83DCD12D, 0, 0, (1, 1, 1, 1)), (2, 3)),
    (2, 12, Generator(0x9E3779B1, 0xFEDCBA98, 15, (1, -1, 1, -1)), (1, 19)),
    (3, 16, Generator(0xB3CACCF3, 0xFFFFFFFF, 31, (-1, -1, -1, -1)), (1, 2)),
    (4, 5, Generator(0xB3CACCF3, 1, 1, (1, -1, -1, -1)), (2, 1)),
]
for bits, window, generator, (row_tiles, column_tiles) in cases:
    qweight = torch.randint(0, 256, (row_tiles, column_tiles, 32 * bits), dtype=torch.uint8, generator=random)
    record = generator.record()
    expected = reference.unpack_codes(qweight, generator, window, bits)
    assert torch.equal(gpu.unpack_codes(qweight, record, window, bits), expected)
    for rows in (9,) if column_tiles == 3 else (1, 3):
        x = torch.randn(rows, 16 * column_tiles, generator=random)
        whole = torch.randint(-127, 128, x.shape, generator=random)
        whole[:, ::16] = 127
        exact = (whole @ expected.T.to(torch.int64)).to(torch.float32)
        for int8 in (False, True):
            assert torch.equal(gpu.matvec(qweight, record, window, bits, whole.float(), int8=int8), exact)
            close = reference.matvec(qweight, generator, window, bits, x, int8=int8)
            torch.testing.assert_close(
                gpu.matvec(qweight, record, window, bits, x, int8=int8), close, rtol=1e-5, atol=1e-2
            )
print("agree")
"""


def test_triton_agrees_with_the_reference():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "agree", done.stderr
