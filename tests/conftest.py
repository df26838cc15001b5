"""What all tests share: no network, one thread, nothing of the user's cache is touched by accident."""

import os

# Set before numpy or torch are first imported, so that test workers do not fight for the cores.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
