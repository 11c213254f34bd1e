"""Bad input to the core: each argument in turn is broken in each way; the error names it, or the result is right."""

import inspect
import math
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import (
    advantages,
    aggregation,
    continuations,
    credit,
    critic,
    environment,
    episodes,
    evidence,
    gradient,
    model,
    packing,
    ppo,
    rewards,
    sampling,
    step_groups,
    tokenizer,
    training,
    turns,
    value,
    whitening,
)
from agentrl.tasks import make_tasks

TOK = tokenizer.build_tokenizer(make_tasks("all"))
AGENT = model.TinyAgent(len(TOK), d=8, n_layers=1, n_heads=2, d_mlp=8, max_len=64)
NAN, INF = math.nan, math.inf
B, T = 4, 6

# An argument is an array of numbers, a mask, ids, or a number of some range; what breaks each of them:
Numbers = namedtuple("Numbers", "value")  # not finite, or of another shape
Logs = namedtuple("Logs", "value")  # NaN or of another shape; infinity is a probability of 0, and bounded
Mask = namedtuple("Mask", "value")  # of another shape
Ids = namedtuple("Ids", "value")  # whole numbers of a range: outside, with a fraction, or of another shape
Choice = namedtuple("Choice", "value wrong")  # one of the wrong ones
POSITIVE, COUNT = (0, -1, NAN, "1", True, None), (0, -1, 2.5, NAN, "1", True)
SHARE, SWITCH, CLIP = (-0.1, 1.1, NAN, INF), ("False", 0, 1, None), (0, -1, NAN, "0.2", True, None)


def drawn(rng):
    """Arrays of one batch: a mask that keeps the first position of each row, and numbers that suit it."""
    mask = torch.rand(B, T, generator=rng) < 0.6
    mask[:, 0] = True
    x, y, z = torch.randn(3, B, T, generator=rng, dtype=torch.float64)
    turn = (torch.rand(B, T, generator=rng) < 0.4).cumsum(1)
    return mask, x, y, z, turn


def cases(rng):
    """(function, {argument: how it can be broken}, other names that stand for an argument in errors)."""
    mask, x, y, z, turn = drawn(rng)
    logp = -x.abs()
    kept, reward = gradient.keep_only(x, mask), x[:, 0]
    ids = torch.randint(1, len(TOK), (B, T + 1), generator=rng)
    length = torch.full((B,), T + 1)
    calls = int((turn.amax(1) + 1).sum())
    batch = {"reward": reward, "action_mask": mask}
    numbers = {"logp": Logs(logp), "old_logp": Logs(-y.abs()), "advantages": Numbers(z)}
    gae = {"rewards": Numbers(kept), "values": Numbers(y), "mask": Mask(mask)}
    shares = {"gamma": Choice(0.9, SHARE), "lam": Choice(0.8, SHARE)}
    clip, switch = {"clip": Choice(0.2, CLIP)}, {"std_normalize": Choice(True, SWITCH)}
    temperature = {"temperature": Choice(0.7, (*POSITIVE, INF))}
    weights = aggregation.loss_weights(mask, "token_mean")
    config = SimpleNamespace(group_size=2, std_normalize=True)
    return [
        (gradient.keep_only, {"x": Choice(x, ()), "mask": Mask(mask)}),
        (gradient.masked_mean, {"x": Choice(x, ()), "mask": Mask(mask)}),
        (gradient.reinforce_loss, {"logp": Numbers(logp), "advantages": Numbers(z), "mask": Mask(mask)}),
        (
            aggregation.loss_weights,
            {"mask": Choice(mask, (mask[0], mask[None])), "mode": Choice("token_mean", ("mean", None))},
        ),
        (aggregation.aggregate, {"x": Choice(x, ()), "mask": Mask(mask), "mode": Choice("token_mean", ("mean", 3))}),
        (ppo.probability_ratio, {"logp": Choice(logp, ()), "old_logp": Choice(y, ()), "mask": Mask(mask)}),
        (ppo.clipped_loss, numbers | {"weights": Numbers(weights)} | clip),
        (ppo.clip_fraction, numbers | {"mask": Mask(mask)} | clip),
        (
            value.value_loss,
            {"values": Numbers(x), "old_values": Numbers(y), "returns": Numbers(z), "mask": Mask(mask)} | clip,
        ),
        (whitening.masked_whiten, {"x": Numbers(x), "mask": Mask(mask), "eps": Choice(1e-8, (-1, NAN, INF))}),
        (credit.outcome_rewards, {"verdict": Numbers(reward), "mask": Choice(mask, (mask[:1], mask[:0], mask[0]))}),
        (credit.returns_to_go, {"rewards": Numbers(kept), "mask": Mask(mask)}),
        (credit.gae_advantages, gae | shares),
        (turns.call_starts, {"mask": Mask(mask), "turn_ids": Ids(turn)}),
        (turns.turn_advantages, gae | {"turn_ids": Ids(turn)} | shares),
        (critic.explained_variance, {"values": Numbers(x), "returns": Numbers(y), "mask": Mask(mask)}),
        (
            step_groups.step_advantages,
            {"returns": Numbers(reward), "keys": Choice(list("aabb"), (list("aab"), []))} | switch,
        ),
        (
            step_groups.step_group_advantages,
            {
                "episode": Numbers(reward),
                "step": Numbers(torch.randn(calls, generator=rng, dtype=torch.float64)),
                "turn": Choice(torch.cat([-torch.ones(B, 1, dtype=torch.long), turn], 1), (turn[:1], turn[0])),
                "mask": Mask(mask),
                "weight": Choice(1.0, (-1, NAN, INF)),
            },
        ),
        (continuations.mean_and_error, {"returns": Choice(x, (x[0], x[:0], x[:, :1], x * NAN, x * INF))}),
        (continuations.call_advantages, {"rewards": Numbers(x[0]), "values": Numbers(torch.cat([y[0], y[0, :1]]))}),
        (
            advantages.group_advantages,
            {"rewards": Numbers(reward), "group_size": Choice(2, (0, 1, -2, 3, 2.0, True, NAN))} | switch,
        ),
        (advantages.compare_kept, {"rewards": Numbers(reward), "kept": Mask(mask.any(1)), "cfg": Choice(config, ())}),
        (
            advantages.compute_advantages,
            {
                "batch": Choice(
                    batch,
                    (
                        batch | {"reward": reward[:2]},
                        batch | {"reward": reward * NAN},
                        batch | {"action_mask": mask[0]},
                        batch | {"action_mask": mask[:2]},
                    ),
                ),
                "cfg": Choice(
                    config,
                    (
                        SimpleNamespace(group_size=3, std_normalize=True),
                        SimpleNamespace(group_size=2, std_normalize="no"),
                    ),
                ),
            },
        ),
        (
            model.selected_log_probs,
            {"logits": Choice(x, (x[:2], x[0])), "ids": Choice(turn[:, 0] % T, (turn, turn[:1, 0]))},
        ),
        (
            model.sequence_log_probs,
            {"model": Choice(AGENT, ()), "ids": Choice(ids, (ids[0], ids[None], ids + 0.5, -ids, ids * 0 + len(TOK)))}
            | temperature,
        ),
        (
            packing.padded_log_probs,
            {"model": Choice(AGENT, ()), "ids": Ids(ids), "length": Choice(length, ()), "mask": Mask(mask)}
            | temperature,
        ),
        (
            packing.action_log_probs,
            {
                "model": Choice(AGENT, ()),
                "ids": Ids(ids),
                "length": Choice(length, (length[:1], length[None], length + 1)),
                "mask": Mask(mask),
            }
            | temperature,
        ),
        (
            sampling.sample_next,
            {
                "logits": Choice(x, (x[:1], x[None], x[:, :0], x * NAN, x + INF)),
                "noise": Choice(
                    torch.full((B,), 0.5),
                    (
                        torch.full((1,), 0.5),
                        torch.full((B,), NAN),
                        torch.full((B,), -0.5),
                        torch.full((B,), 2.0),
                        torch.full((B, 1), 0.5),
                    ),
                ),
            }
            | temperature,
        ),
        (
            episodes.pad_rows,
            {"rows": Choice([x[0], y[0, :2]], ([],)), "width": Choice(8, (0, -1, 5, 2.5)), "value": Choice(0.0, ())},
        ),
        (episodes.length_buckets, {"length": Choice(length, ()), "size": Choice(2, COUNT)}),
        (
            evidence.expanded_level,
            {"confidence": Choice(0.95, (95, 0, 1, NAN, True, "0.95")), "n": Choice(8, (1, 0, -3))},
        ),
        (
            evidence.interval,
            {
                "scores": Choice(x.numpy(), (np.zeros((0, 2)), np.zeros(3), x.numpy() * NAN, x.numpy() * INF)),
                "statistic": Choice(np.mean, ()),
                "confidence": Choice(0.9, (95, 0, 1, NAN, True)),
            },
        ),
        (
            evidence.verdict,
            {
                "found": Choice({"low": 0.1, "high": 0.2}, ({"low": 1, "high": 0},)),
                "region": Choice((0, 1), ((1, 0), (NAN, 1), (1, 1))),
            },
        ),
        (
            rewards.make_reward,
            {
                "kind": Choice("hidden", ("hiden", None)),
                "step_penalty": Choice(0.1, (-0.1, NAN, INF)),
                "wrong_submit": Choice(-1.0, (0.1, NAN, -INF)),
                "invalid_penalty": Choice(0.1, (-0.1, NAN, INF)),
            },
        ),
        (environment.check_count, {"name": Choice("n", ()), "value": Choice(1, COUNT)}),
        (environment.BugFixEnv, {"max_turns": Choice(6, COUNT), "max_edits": Choice(1, (-1, 0.5, NAN, "1", True))}),
        (
            model.TinyAgent,
            {name: Choice(8, COUNT) for name in ("vocab_size", "d", "n_layers", "n_heads", "d_mlp", "max_len")},
        ),
        (TOK.encode, {"text": Choice("read test", (None, 3, ["read"]))}),
        (TOK.decode, {"ids": Choice([1, 2], ([-1], [len(TOK)], [0.5], [NAN]))}),
    ]


CONFIG = {
    **dict.fromkeys(("prompts_per_step", "max_turns", "epochs", "minibatches", "bucket_size"), COUNT),
    "group_size": (1, *COUNT),
    "max_edits": (-1, 0.5, NAN, True),
    "seed": (-1, 0.5, NAN, True),
    **dict.fromkeys(("temperature", "clip", "lr", "max_grad_norm"), (*POSITIVE, INF)),
    **dict.fromkeys(("std_normalize", "fresh_names"), SWITCH),
    "loss_agg": ("mean", None),
    "reward": ("hiden", None),
    **dict.fromkeys(("step_penalty", "invalid_penalty"), (-0.1, NAN, INF)),
    "wrong_submit": (0.1, NAN, -INF),
}
NAMES = {"turn_ids": "turn", "kind": "reward"}  # what an error may call an argument
COMMON = {  # arguments that describe one thing together: an error may name either
    "cfg": ("group_size", "std_normalize", "minibatches"),
    "batch": ("reward", "action_mask"),
    "ids": ("token id", "mask"),
    "d": ("n_heads",),
    "n_heads": ("d=",),
    "mode": ("loss aggregation",),
    "found": ("interval",),
    "length": ("where",),
    "scores": ("shape",),
    "value": ("n=",),
    "mask": ("where", "rewards", "verdict", "keys"),
    "keys": ("one a key",),
    "logits": ("noise",),
    "logp": ("advantages have shape",),
    "x": ("mask",),
    "step": ("step advantages",),
    "verdict": ("mask",),
    "returns": ("return of call",),
    "rewards": ("reward",),
    "width": ("width",),
    "kept": ("mask", "kept"),
    "turn": ("turn",),
}


def broken(case, rng):
    """The values that break an argument."""
    if isinstance(case, Choice):
        return list(case.wrong)
    x = case.value
    shapes = [x[:1], x[:0], x[None], x[..., :-1]] if x.dim() > 1 else [x[:0], x[None]]
    if isinstance(case, Mask):
        return shapes
    if isinstance(case, Ids):
        return [*shapes, x.double() + 0.5, x.masked_fill(torch.ones_like(x, dtype=torch.bool), -2)]
    for bad in (NAN,) if isinstance(case, Logs) else (NAN, INF, -INF):
        at = x.clone()
        at[(0,) * x.dim()] = bad  # a kept position
        shapes.append(at)
    return shapes


def called(error, name):
    text = str(error)
    return any(word in text for word in (name, NAMES.get(name, name), *COMMON.get(name, ())))


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=3)
def test_each_argument_broken_in_turn_is_named(seed):
    silent = []
    for function, arguments in cases(torch.Generator().manual_seed(seed)):
        good = {name: case.value for name, case in arguments.items()}
        function(**good)
        for name, case in arguments.items():
            for wrong in broken(case, seed):
                where = (function.__qualname__, name, wrong if not isinstance(wrong, torch.Tensor) else wrong.tolist())
                try:
                    result = function(**good | {name: wrong})
                except ValueError as error:
                    if not called(error, name):
                        silent.append((*where, f"ValueError without its name: {error}"))
                except Exception as error:
                    silent.append((*where, f"{type(error).__name__}: {error}"))
                else:
                    silent.append((*where, f"no error: {result}"))
    assert not silent, "\n" + "\n".join(map(str, silent))


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, all_wrong in CONFIG.items() for wrong in all_wrong]
)
def test_each_field_of_a_configuration_is_named(name, wrong):
    with pytest.raises(ValueError, match=name):
        training.RLConfig(**{name: wrong})


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=10)
def test_a_batch_that_keeps_nothing_gives_zeros_and_no_nan(seed):
    mask, x, y, z, turn = drawn(torch.Generator().manual_seed(seed))
    none, zeros = torch.zeros_like(mask), torch.zeros_like(x)
    empty = x * NAN  # what is dropped may hold anything
    results = [
        gradient.keep_only(empty, none),
        gradient.masked_mean(empty, none),
        gradient.reinforce_loss(empty, empty, none),
        aggregation.aggregate(empty, none, "token_mean"),
        aggregation.loss_weights(none, "seq_mean_token_mean"),
        ppo.clipped_loss(empty, empty, empty, zeros),
        ppo.clip_fraction(empty, empty, empty, none),
        value.value_loss(empty, empty, empty, none, 0.2),
        whitening.masked_whiten(empty, none),
        *credit.gae_advantages(zeros, empty, none, 1.0, 1.0),
        *turns.turn_advantages(zeros, empty, none, turn, 1.0, 1.0),
        credit.outcome_rewards(torch.zeros(B), none),
        credit.returns_to_go(zeros, none),
        advantages.compute_advantages(
            {"reward": x[:, 0], "action_mask": none}, SimpleNamespace(group_size=2, std_normalize=True)
        ),
    ]
    for result in results:
        assert result.eq(0).all()


def test_whole_numbers_count_as_what_they_are():
    mask, turn = torch.ones(2, 3), torch.tensor([[0, 1, 1], [0, 0, 1]])
    whole = [torch.tensor([[0, 1, -1], [2, 0, 1]]) for _ in range(3)]
    real = [x.double() for x in whole]
    for function, n, rest in (
        (gradient.masked_mean, 1, (mask,)),
        (gradient.reinforce_loss, 2, (mask,)),
        (ppo.clipped_loss, 3, (mask.double(),)),
        (ppo.clip_fraction, 3, (mask,)),
        (value.value_loss, 3, (mask, 0.5)),
        (credit.returns_to_go, 1, (mask,)),
        (credit.gae_advantages, 2, (mask, 0.9, 0.5)),
        (turns.turn_advantages, 2, (mask, turn, 0.9, 0.5)),
        (critic.explained_variance, 2, (mask,)),
        (aggregation.aggregate, 1, (mask, "token_mean")),
    ):
        found, right = (function(*x[:n], *rest) for x in (whole, real))
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, right)), strict=True):
            assert float(torch.as_tensor(a, dtype=torch.float64).sub(b).abs().max()) < 1e-6, function.__name__


def test_the_table_covers_every_public_function_that_computes_from_arrays():
    covered = {function.__name__ for function, _ in cases(torch.Generator().manual_seed(0))}
    for module in (gradient, aggregation, ppo, value, whitening, credit, turns, step_groups, advantages):
        own = {name for name, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__}
        left = own - covered - {name for name in own if name.startswith("check_")}
        assert left <= {"same_within", "state_key", "call_texts", "visited_states"}, (module.__name__, left)
