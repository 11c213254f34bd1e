"""Train the same run under every condition that must not matter, and compare.

    python -m tools.reproduce               40 steps under each condition (minutes)
    python -m tools.reproduce --steps 2     a short run, as the tests do it

Conditions that differ in what a process reads at its start, the threads and the kernels, run in processes of their own.
Sampled ids and statistics must be equal to the last digit; parameters may differ by rounding, and the table says by
how much.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import torch
import typer
from tqdm import tqdm

from agentrl import sampling
from agentrl.base import make_rl_base
from agentrl.episodes import Episode, make_trajectory, take_rows
from agentrl.packing import padded_log_probs
from agentrl.sampling import CachedReader, PlainReader, run_episodes, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, minibatch_step, rl_update, train_rl

CONDITIONS = {  # name: environment variables, what is replaced in the process
    "1 thread": ({"OMP_NUM_THREADS": "1"}, None),
    "2 threads": ({"OMP_NUM_THREADS": "2"}, None),
    "default kernels": ({"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}, None),
    "plain sampler": ({"OMP_NUM_THREADS": "1"}, "plain"),
    "padded update": ({"OMP_NUM_THREADS": "1"}, "padded"),
    "shuffled batch": ({"OMP_NUM_THREADS": "1"}, "shuffled"),
    "buckets of 5": ({"OMP_NUM_THREADS": "1"}, "buckets"),
}


def shuffled_rollout(model, envs, tasks, tok, max_turns, temperature, generator, reader=CachedReader):
    """rollout_batch with the rows of the batch in another order, each with the uniforms that it would have had."""
    order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(1)).tolist()
    episodes = [Episode(envs[n], tasks[n], tok, max_turns, model.max_len) for n in order]
    noise = torch.rand(len(tasks), model.max_len, generator=generator, dtype=torch.float64)
    run_episodes(reader(model, len(order)), episodes, temperature, noise[order])
    return [make_trajectory(episodes[order.index(n)]) for n in range(len(order))]


def shuffled_minibatch(policy, opt, minibatch, cfg, log_probs):
    """minibatch_step with the rows in reverse order."""
    rows = torch.arange(len(minibatch["ids"])).flip(0)
    return minibatch_step(policy, opt, take_rows(minibatch, rows), cfg, log_probs)


def padded_minibatch(policy, opt, minibatch, cfg, log_probs):
    """minibatch_step on the padded batch."""
    return minibatch_step(policy, opt, minibatch, cfg, padded_log_probs)


STEPS = {"padded": padded_minibatch, "shuffled": shuffled_minibatch}  # condition: its optimiser step
ROLLOUTS = {"shuffled": shuffled_rollout}


def run_here(steps: int, replace: str | None) -> dict:
    """Train the default arm for `steps` steps in this process; ids as one hash a step, history and parameters."""
    hashes = []

    def recorded(*args):
        trajs = sample_step(*args, reader=PlainReader if replace == "plain" else CachedReader)
        hashes.append(hashlib.sha256(repr([traj.ids.tolist() for traj in trajs]).encode()).hexdigest())
        return trajs

    tok = build_tokenizer(make_tasks("all"))
    policy = make_rl_base(tok)
    cfg = RLConfig(bucket_size=5) if replace == "buckets" else RLConfig()
    update = partial(rl_update, step=STEPS.get(replace, minibatch_step))
    with patch.object(sampling, "rollout_batch", ROLLOUTS.get(replace, sampling.rollout_batch)):
        history = train_rl(policy, make_tasks("train"), tok, cfg, steps, sample=recorded, update=update)
    exact = [{k: v for k, v in row.items() if k not in ("grad_norm", "clip_fraction")} for row in history]
    parameters = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    return {"hashes": hashes, "statistics": exact, "parameters": parameters}


def run_elsewhere(steps: int, variables: dict[str, str], names: list[str]) -> dict[str, dict]:
    """{condition: result} of those that share these environment variables, from a new process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.pt"
        command = [sys.executable, "-m", "tools.reproduce", "--steps", str(steps), "--out", str(out), *names]
        env = os.environ | variables | {"TQDM_DISABLE": "1"}
        subprocess.run(command, env=env, check=True, cwd=Path(__file__).parents[1], timeout=3600)
        return torch.load(out, weights_only=False)


def compare(steps: int, conditions=tuple(CONDITIONS)) -> list[dict]:
    """One row a condition: are ids and statistics equal to the first condition's, and how far apart are parameters?"""
    make_rl_base(build_tokenizer(make_tasks("all")))  # once, so that every process reads the same base
    starts = {tuple(CONDITIONS[name][0].items()): [] for name in conditions}
    for name in conditions:
        starts[tuple(CONDITIONS[name][0].items())].append(name)
    found = {}
    for variables, names in tqdm(starts.items(), desc="processes"):
        found |= run_elsewhere(steps, dict(variables), names)
    results = {name: found[name] for name in conditions}
    reference = results[conditions[0]]
    return [
        {
            "condition": name,
            "ids equal": result["hashes"] == reference["hashes"],
            "statistics equal": result["statistics"] == reference["statistics"],
            "parameters differ by": (result["parameters"] - reference["parameters"]).abs().max().item(),
        }
        for name, result in results.items()
    ]


def main(
    conditions: Annotated[list[str] | None, typer.Argument(help="With --out: those to run here.")] = None,
    steps: int = 40,
    out: Path | None = None,
) -> None:
    """Compare all conditions, or (with --out) run some of them in this process and store their results."""
    if out:
        torch.save({name: run_here(steps, CONDITIONS[name][1]) for name in conditions}, out)
        return
    rows = compare(steps)
    for row in rows:
        print(
            f"{row['condition']:16} ids equal: {row['ids equal']}  statistics equal: {row['statistics equal']}  "
            f"parameters differ by {row['parameters differ by']:.1e}"
        )
    if not all(row["ids equal"] and row["statistics equal"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
