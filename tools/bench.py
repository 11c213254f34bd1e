"""Time training against the plain loop and against the machine's matrix rate, in one process on one thread.

    python -m tools.bench            the default run and how it grows; writes figures/data/bench.csv (about ten minutes)
    python -m tools.bench --quick    three steps of the default run only; writes nothing

plain: a full forward pass of the padded context for every sampled token, and an update on the padded batch.
ours:  the cached sampler of section 5.3 and the packed rows of section 3.3.
floor: the floating-point operations to read every token once and to train on every token once, at the rate of a
       large matrix product in the same dtype. (Ours leaves some of them out: the last block and the head where no
       action is predicted.)
kernels: the matrix products and the attention of ours, forward and backward, at the shapes of the run: each call is
       clocked inside the same steps, run a second time.

Both sample the same episodes, and the bench stops if they do not. The tests of the candidate programs have been
executed before; what share of a fresh run's wall clock is spent waiting for them is measured apart. Times are seconds
of the processor, which other programs disturb less than a clock's, and this machine's; ratios travel better.
"""

import time
import timeit
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import joblib
import pandas as pd
import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from agentrl import testing
from agentrl.advantages import compute_advantages
from agentrl.base import make_rl_base
from agentrl.episodes import collate
from agentrl.model import TinyAgent
from agentrl.packing import action_log_probs, padded_log_probs
from agentrl.sampling import CachedReader, PlainReader, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, rl_update, train_rl

METHODS = {"plain": (PlainReader, padded_log_probs), "ours": (CachedReader, action_log_probs)}
TABLE = Path(__file__).parents[1] / "figures" / "data" / "bench.csv"


@dataclass(frozen=True)
class Case:
    """One row: what is varied and its value, the configuration, and the model (the RL base if it is not described)."""

    varied: str
    value: int
    config: dict
    model: dict = field(default_factory=dict)
    steps: int = 3
    memory: bool = True


# The untrained policy of other widths and contexts writes malformed calls until its turns, or its context, are used up.
SMALL = {"prompts_per_step": 2}
CASES = [
    Case("default run", 40, {}, steps=40),
    *(Case("group size", n, {"group_size": n}, steps=max(1, 24 // n)) for n in (8, 32, 128)),
    *(Case("turns", n, {"max_turns": n}) for n in (6, 12, 24)),
    *(Case("context", n, SMALL | {"max_turns": n}, {"max_len": n}, 1, memory=False) for n in (64, 128, 256, 512)),
    *(Case("width", n, SMALL, {"d": n, "d_mlp": 3 * n}, memory=False) for n in (32, 64, 128, 256)),
]


@lru_cache
def matrix_rate(n: int = 512) -> float:
    """Floating-point operations a second of an n x n matrix product in float64: the best of a hundred."""
    a = torch.ones(n, n, dtype=torch.float64)
    return 2 * n**3 / min(timeit.repeat(lambda: a @ a, number=1, repeat=100, timer=time.process_time))


def operations(policy: torch.nn.Module, length: int) -> float:
    """Operations to read each token once and to train once: 2 a weight and token forward, 4 backward, and attention.

    A token at position p attends to p keys: 4 d p operations a layer. Embeddings are looked up, not multiplied.
    """
    d, n_layers = policy.head.in_features, len(policy.blocks)
    lookups = policy.tokens.weight.numel() + policy.positions.weight.numel()
    weights = sum(p.numel() for p in policy.parameters() if p.dim() == 2) - lookups
    return 4 * (2 * weights * length + n_layers * 4 * d * length * (length + 1) / 2)  # once in sampling, thrice after


class KernelClock(TorchDispatchMode):
    """Seconds of the processor within matrix products and attention, in sampling and in the update (`seconds`)."""

    PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")

    def __init__(self):
        super().__init__()
        self.seconds, self.phase = {"sampling": 0.0, "update": 0.0}, "sampling"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in self.PRODUCTS and "scaled_dot_product" not in name:
            return func(*args, **(kwargs or {}))
        start = time.process_time()
        result = func(*args, **(kwargs or {}))
        self.seconds[self.phase] += time.process_time() - start
        return result


def start_policy(case: Case, tok) -> TinyAgent:
    """The RL base, or an untrained model of the case's shape."""
    return TinyAgent(len(tok), **case.model) if case.model or case.varied == "width" else make_rl_base(tok)


def timed_run(case: Case, method: str, steps: int, clock: KernelClock | None = None) -> dict:
    """Seconds of sampling and of updating over some training steps, and the episodes' lengths.

    `clock` is told which of the two is going on.
    """
    clock = clock or KernelClock()
    tok, tasks, cfg = build_tokenizer(make_tasks("all")), make_tasks("train"), RLConfig(**case.config)
    policy, rng = start_policy(case, tok), torch.Generator().manual_seed(cfg.seed)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5, fused=True)
    reader, log_probs = METHODS[method]
    if method == "plain":  # the whole minibatch is one padded rectangle
        cfg = RLConfig(**case.config, bucket_size=cfg.prompts_per_step * cfg.group_size)
    run = {"sampling": 0.0, "update": 0.0, "lengths": [], "policy": policy}
    for _ in tqdm(range(steps), desc=f"{case.varied} {case.value}, {method}", leave=False):
        clock.phase, start = "sampling", time.process_time()
        trajs = sample_step(policy, tasks, tok, cfg, rng, reader=reader)
        clock.phase, middle = "update", time.process_time()
        batch = collate(trajs, tok.pad_id)
        rl_update(policy, opt, batch, compute_advantages(batch, cfg), cfg, log_probs)
        run["sampling"] += middle - start
        run["update"] += time.process_time() - middle
        run["lengths"] += [len(traj.ids) for traj in trajs]
    return run


def kernel_seconds(case: Case) -> dict[str, float]:
    """Seconds of the kernels alone, in sampling and in the update, over the case's steps of ours."""
    with KernelClock() as clock:
        timed_run(case, "ours", case.steps, clock)
    return clock.seconds


def peak_megabytes() -> float:
    """The largest resident size that this process has had (from Linux's /proc: rusage counts the parent's, too)."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), float("nan"))


def peak_memory(case: Case, method: str) -> float:
    """Megabytes by which one training step raises the peak of a fresh process (which has read all code before)."""
    torch.set_num_threads(1)
    timed_run(Case("warm-up", 0, {"prompts_per_step": 1, "group_size": 2}, {"max_len": 64}), method, 1)
    before = peak_megabytes()
    timed_run(case, method, 1)
    return peak_megabytes() - before


def in_fresh_process(function: Callable, *arguments):
    """The result of a call that a new process makes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(case: Case, memory: bool) -> dict:
    """One row: the plain loop, ours, both floors and their ratios; with the memory of a step, if asked for."""
    timed_run(case, "ours", 1)  # first calls are slow
    plain, ours = (timed_run(case, method, case.steps) for method in METHODS)
    if plain["lengths"] != ours["lengths"]:
        raise RuntimeError("the plain loop and ours sampled different episodes: a time means nothing then")
    tokens, n_episodes = sum(ours["lengths"]), len(ours["lengths"])
    floor = sum(operations(ours["policy"], length) for length in ours["lengths"]) / matrix_rate()
    kernels = kernel_seconds(case)
    seconds, seconds_plain = (run["sampling"] + run["update"] for run in (ours, plain))
    return {
        "varied": case.varied,
        "value": case.value,
        "tokens an episode": tokens / n_episodes,
        "plain / ours": seconds_plain / seconds,
        "ours / floor": seconds / floor,
        "sampling / floor": ours["sampling"] / (floor / 4),  # a token is read once in sampling, and thrice after
        "update / floor": ours["update"] / (3 * floor / 4),
        "ours / kernels": seconds / sum(kernels.values()),
        "sampling / kernels": ours["sampling"] / kernels["sampling"],
        "update / kernels": ours["update"] / kernels["update"],
        "sampling, share of ours": ours["sampling"] / seconds,
        "sampling, plain / ours": plain["sampling"] / ours["sampling"],
        "update, plain / ours": plain["update"] / ours["update"],
        "episodes a second": n_episodes / seconds,
        "tokens a second": tokens / seconds,
        "s a step, sampling": ours["sampling"] / case.steps,
        "s a step, update": ours["update"] / case.steps,
        "s a step, plain": seconds_plain / case.steps,
        "s a step, floor": floor / case.steps,
        "s a step, kernels": sum(kernels.values()) / case.steps,
        "matrix rate, GFLOPS": matrix_rate() / 1e9,
    } | ({f"MB a step, {method}": in_fresh_process(peak_memory, case, method) for method in METHODS} if memory else {})


def train_seed(seed: int, steps: int) -> None:
    """What one process does: train a seed on one thread."""
    torch.set_num_threads(1)
    tok = build_tokenizer(make_tasks("all"))
    train_rl(make_rl_base(tok), make_tasks("train"), tok, RLConfig(seed=seed), steps)


def two_processes(steps: int = 10) -> float:
    """How many times longer two seeds take one after the other than in two processes of one thread each."""

    def seconds(jobs: int) -> float:
        pool = joblib.Parallel(n_jobs=jobs)
        pool(joblib.delayed(train_seed)(seed, steps) for seed in range(2))  # start processes, execute the tests
        start = time.perf_counter()
        pool(joblib.delayed(train_seed)(seed, steps) for seed in range(2))
        return time.perf_counter() - start

    return seconds(1) / seconds(2)


def waiting_share(steps: int = 10) -> tuple[float, float]:
    """(share of the wall clock that a run waits for programs' tests, milliseconds a program), none tested before."""
    torch.set_num_threads(1)
    tok, waits, run_child = build_tokenizer(make_tasks("all")), [], testing._run_child
    policy = make_rl_base(tok)
    testing._execute.cache_clear()

    def clocked(*arguments):
        start, busy = time.perf_counter(), time.process_time()
        result = run_child(*arguments)
        waits.append(time.perf_counter() - start - (time.process_time() - busy))
        return result

    testing._run_child = clocked
    start = time.perf_counter()
    train_rl(policy, make_tasks("train"), tok, RLConfig(), steps)
    return sum(waits) / (time.perf_counter() - start), 1000 * sum(waits) / len(waits)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Three steps of the default run only.")] = False,
) -> None:
    """Print the table and store it for section 9.5."""
    torch.set_num_threads(1)
    timed_run(Case("warm-up", 0, {}), "ours", 2 if quick else 40)  # executes the tests of the candidate programs
    cases = [Case("default run", 3, {})] if quick else CASES
    table = pd.DataFrame([measure(case, case.memory and not quick) for case in tqdm(cases, desc="bench")])
    print(table.set_index(["varied", "value"]).round(3).T.to_string())
    share, wait = in_fresh_process(waiting_share)
    print(f"\nten first steps: {share:.1%} of the wall clock waiting for programs' tests, {wait:.1f} ms each")
    gain = two_processes()
    print(f"two seeds in two processes: {gain:.2f} times as fast as one after the other")
    if not quick:
        for name, value in (("two processes, gain", gain), ("waiting for tests, share", share)):
            table[name] = [value] + [None] * (len(table) - 1)
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        table.round(4).to_csv(TABLE, index=False, lineterminator="\n")
        print(f"stored in {TABLE.relative_to(TABLE.parents[2])}; `make notebooks` puts it into section 9.5")


if __name__ == "__main__":
    typer.run(main)
