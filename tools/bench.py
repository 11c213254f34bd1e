"""Time a training step against the plain loop and against the machine's matrix rate, in one process on one thread.

    python -m tools.bench                  the default run
    python -m tools.bench --grid           and larger groups, more turns

plain: a full forward pass of the padded context for every sampled token, and an update on the padded batch.
ours:  the cached sampler and length buckets.
floor: the floating-point operations that the episodes need, at the rate of a large matrix product in the same dtype.

Times are this machine's; only ratios mean something elsewhere.
"""

import time
from dataclasses import replace
from typing import Annotated

import pandas as pd
import torch
import typer
from tqdm import tqdm

from agentrl.advantages import compute_advantages
from agentrl.base import make_rl_base
from agentrl.environment import make_env
from agentrl.episodes import collate
from agentrl.sampling import CachedReader, PlainReader, rollout_batch
from agentrl.tasks import make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, rl_update

GRID = [{"group_size": 32}, {"max_turns": 12}, {"max_turns": 24}]


def matrix_rate(n: int = 512, seconds: float = 1.0, dtype: torch.dtype = torch.float64) -> float:
    """Floating-point operations a second of an n x n matrix product."""
    a, count, start = torch.ones(n, n, dtype=dtype), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        _, count = a @ a, count + 1
    return count * 2 * n**3 / (time.perf_counter() - start)


def operations(policy: torch.nn.Module, lengths: list[int]) -> float:
    """Operations to read each token once and to train once: 2 a weight and token forward, 4 backward, and attention.

    A token at position p attends to p keys: 4 d p operations a layer. Embeddings are looked up, not multiplied.
    """
    d, n_layers = policy.head.in_features, len(policy.blocks)
    lookups = policy.tokens.weight.numel() + policy.positions.weight.numel()
    weights = sum(p.numel() for p in policy.parameters() if p.dim() == 2) - lookups
    forward = sum(2 * weights * n + n_layers * 4 * d * n * (n + 1) / 2 for n in lengths)
    return 4 * forward  # once in sampling, three times in the update


def timed_steps(policy, tok, cfg: RLConfig, reader, steps: int) -> tuple[float, float, list[int]]:
    """Seconds of sampling and of updating over some training steps, and the lengths of the episodes."""
    rng, tasks = torch.Generator().manual_seed(cfg.seed), make_tasks("train")
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5)
    sampling = updating = 0.0
    lengths: list[int] = []
    for step in range(steps + 1):  # the first fills caches and does not count
        picks = torch.randperm(len(tasks), generator=rng)[: cfg.prompts_per_step].tolist()
        named = [randomize_names(tasks[n], rng) for n in picks for _ in range(cfg.group_size)]
        start = time.perf_counter()
        envs = [make_env(cfg) for _ in named]
        trajs = rollout_batch(policy, envs, named, tok, cfg.max_turns, cfg.temperature, rng, reader)
        middle = time.perf_counter()
        batch = collate(trajs, tok.pad_id)
        rl_update(policy, opt, batch, compute_advantages(batch, cfg), cfg)
        if step:
            sampling, updating = sampling + middle - start, updating + time.perf_counter() - middle
            lengths += [len(traj.ids) for traj in trajs]
    return sampling, updating, lengths


def measure(change: dict, steps: int) -> dict:
    """One row: the plain loop, ours and the floor, for the default configuration with a change."""
    tok, cfg = build_tokenizer(make_tasks("all")), RLConfig(**change)
    whole = replace(cfg, bucket_size=cfg.prompts_per_step * cfg.group_size)  # one bucket: the padded batch
    plain = timed_steps(make_rl_base(tok), tok, whole, PlainReader, steps)
    ours = timed_steps(make_rl_base(tok), tok, cfg, CachedReader, steps)
    if plain[2] != ours[2]:
        raise RuntimeError("the plain loop and ours sampled different episodes: a time means nothing then")
    floor = operations(make_rl_base(tok), ours[2]) / matrix_rate()
    return {
        "run": ", ".join(f"{name} {value}" for name, value in change.items()) or "default",
        "episodes a second": len(ours[2]) / sum(ours[:2]),
        "tokens a second": sum(ours[2]) / sum(ours[:2]),
        "sampling, s a step": ours[0] / steps,
        "update, s a step": ours[1] / steps,
        "plain, s a step": sum(plain[:2]) / steps,
        "floor, s a step": floor / steps,
        "plain / ours": sum(plain[:2]) / sum(ours[:2]),
        "ours / floor": sum(ours[:2]) / floor,
    }


def main(
    grid: Annotated[bool, typer.Option("--grid", help="Larger groups and more turns, too.")] = False,
    steps: Annotated[int, typer.Option(help="Training steps that are timed.")] = 5,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    changes = [{}, *(GRID if grid else [])]
    rows = [measure(change, steps) for change in tqdm(changes, desc="bench")]
    print(pd.DataFrame(rows).set_index("run").T.round(3).to_string())


if __name__ == "__main__":
    typer.run(main)
