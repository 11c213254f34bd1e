import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from agentrl.model import TinyAgent
from tools import bench


def counted(model, n):
    """Operations of the matrix products in a forward pass of n tokens, as torch counts them."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(1, n, dtype=torch.long))
    products = {"mm", "addmm", "bmm", "baddbmm"}
    return sum(n for name, n in counter.get_flop_counts()["Global"].items() if name.__name__ in products)


def test_operations_are_those_of_the_matrix_products_and_attention():
    model = TinyAgent(11, d=8, n_layers=2, n_heads=2, d_mlp=16, max_len=32)
    for n in (1, 7):
        attention = 2 * 4 * 8 * n * (n + 1) / 2
        assert bench.operations(model, n) / 4 == counted(model, n) + attention


TINY = bench.Case("context", 32, {"prompts_per_step": 1, "group_size": 2, "max_turns": 2}, {"max_len": 32}, steps=1)


def test_both_methods_sample_the_same_and_a_row_is_complete():
    row = bench.measure(TINY, memory=False)
    assert row["varied"] == "context" and row["value"] == 32
    assert row["plain / ours"] > 0 and row["ours / floor"] > 0
    assert 0 < row["sampling, share of ours"] < 1
    assert row["sampling / kernels"] > 0 and row["update / kernels"] > 0 and row["matrix rate, GFLOPS"] > 0


def test_the_kernel_clock_tells_products_and_attention_from_the_rest():
    x, clock = torch.ones(1, 2, 8, 4, requires_grad=True), bench.KernelClock()
    with clock:
        (x + x).exp().sum().backward()
    assert clock.seconds == {"sampling": 0.0, "update": 0.0}
    clock.phase = "update"
    with clock:
        torch.nn.functional.scaled_dot_product_attention(*[x @ torch.ones(4, 64)] * 3).sum().backward()
    assert clock.seconds["update"] > 0 and clock.seconds["sampling"] == 0


def test_other_episodes_are_noticed(monkeypatch):
    monkeypatch.setitem(bench.METHODS, "plain", (lambda model, n: FirstWord(n), bench.padded_log_probs))
    with pytest.raises(RuntimeError, match="different episodes"):
        bench.measure(TINY, memory=False)


class FirstWord:
    """A reader that always wants the end of a call."""

    def __init__(self, n_rows):
        self.n_rows = n_rows

    def next_logits(self, new_ids):
        logits = torch.zeros(len(new_ids), 94, dtype=torch.float64)
        logits[:, bench.build_tokenizer(bench.make_tasks("all")).call_end_id] = 50.0
        return logits
