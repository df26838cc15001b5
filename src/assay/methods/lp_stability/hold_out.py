from __future__ import annotations


def hold_out_rows(*a, **k):
    return []
