"""Where modules are quantized: threads that leave torch as it was."""

from __future__ import annotations

import threading

import pytest
import torch

from assay.methods.proteus.workers import one_thread_each, workers


def test_threads_compute_with_one_thread_each():
    before = torch.get_num_threads()
    with workers(2) as crew, one_thread_each():
        tasks = [crew.submit(lambda: (torch.get_num_threads(), threading.get_ident())) for _ in range(4)]
        seen = [task.result() for task in tasks]
    assert {count for count, _ in seen} == {1}
    assert threading.get_ident() not in {thread for _, thread in seen}
    assert torch.get_num_threads() == before


def test_threads_are_given_back_after_an_error():
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), workers(1) as crew, one_thread_each():
            crew.submit(dict.pop, {}, "absent").result()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_shared_values_are_themselves_in_threads():
    value = torch.zeros(3)
    with workers(1) as crew:
        assert crew.submit(id, crew.share(value)).result() == id(value)
