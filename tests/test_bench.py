import torch
from torch.utils.flop_counter import FlopCounterMode

from agentrl.model import TinyAgent
from tools.bench import operations


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
        assert operations(model, [n]) / 4 == counted(model, n) + attention


def test_operations_add_up_over_episodes():
    model = TinyAgent(11, d=8, n_heads=2)
    assert operations(model, [5, 9]) == operations(model, [5]) + operations(model, [9])
