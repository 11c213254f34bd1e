"""The critic: starts at 0, sees only the past, is fitted by a plain regression, and leaves the policy alone."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.critic import (
    base_episodes,
    batch_values,
    critic_step,
    critic_values,
    explained_variance,
    fit_critic,
    make_base_critic,
    make_critic,
    verdict_returns,
)
from agentrl.episodes import collate
from agentrl.model import TinyAgent
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

POLICY = TinyAgent(vocab_size=11, d=8, n_layers=2, n_heads=2, d_mlp=16, max_len=32, seed=3)
seeds = st.integers(0, 2**32 - 1)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def some_critic(seed=0):
    """A critic whose head is not zero."""
    critic = make_critic(POLICY)
    with torch.no_grad():
        critic.head.weight.copy_(torch.randn(1, 8, generator=rng(seed), dtype=torch.float64))
        critic.head.bias.fill_(0.3)
    return critic


def some_batch(seed=0, lengths=(9, 4, 12, 7, 12)):
    """A padded batch with random ids and mask, and returns for it."""
    generator, length, width = rng(seed), torch.tensor(lengths), max(lengths)
    real = torch.arange(1, width) < length[:, None]
    mask = real & (torch.rand(len(lengths), width - 1, generator=generator) < 0.6)
    batch = {
        "ids": torch.randint(11, (len(lengths), width), generator=generator),
        "action_mask": mask,
        "logp": torch.zeros(len(lengths), width - 1, dtype=torch.float64),
        "length": length,
    }
    return batch, torch.randn(len(lengths), width - 1, generator=generator, dtype=torch.float64)


def parameters(module):
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def test_it_starts_at_zero_from_a_copy_of_the_trunk():
    ids = torch.randint(11, (3, 7), generator=rng())
    critic = make_critic(POLICY)
    assert critic_values(critic, ids).tolist() == [[0.0] * 6] * 3
    assert torch.equal(critic.trunk.hidden(ids), POLICY.hidden(ids))
    assert critic(ids).dtype == torch.float64


def test_training_it_leaves_the_policy_alone_and_reaches_every_parameter():
    before, critic = parameters(POLICY), some_critic()
    start = {name: p.detach().clone() for name, p in critic.named_parameters()}
    batch, returns = some_batch()
    critic_step(critic, torch.optim.SGD(critic.parameters(), lr=0.1), batch, returns)
    assert torch.equal(parameters(POLICY), before)
    used = {name for name, p in critic.named_parameters() if not torch.equal(p, start[name])}
    assert used == set(start)


def test_a_value_is_the_head_on_what_stands_before_the_token():
    critic, ids = some_critic(), torch.randint(11, (2, 9), generator=rng(1))
    values = critic_values(critic, ids)
    assert values.shape == (2, 8)
    for t in range(8):
        hidden = POLICY.hidden(ids[:, : t + 1])[:, -1]
        torch.testing.assert_close(values[:, t], hidden @ critic.head.weight[0] + 0.3, rtol=0, atol=1e-12)
        changed = ids.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % 11
        torch.testing.assert_close(critic_values(critic, changed)[:, : t + 1], values[:, : t + 1], rtol=0, atol=1e-12)


@given(seeds, st.integers(1, 6))
@settings(max_examples=20)
def test_a_step_is_a_step_on_the_mean_squared_error_however_it_is_cut(seed, bucket_size):
    batch, returns = some_batch(seed)
    critic = some_critic(seed)
    plain = copy.deepcopy(critic)
    kept = batch["action_mask"]
    loss = (critic_values(plain, batch["ids"]) - returns)[kept].square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    garbage = returns.masked_fill(~kept, math.nan)
    step = critic_step(critic, torch.optim.SGD(critic.parameters(), lr=0.1), batch, garbage, bucket_size)
    assert step == pytest.approx(loss.item(), abs=1e-12)
    torch.testing.assert_close(parameters(critic), parameters(plain), rtol=0, atol=1e-12)


def test_the_gradient_by_finite_differences():
    """A tiny loss, so that the norm's limit does not bite; steps of size 0 leave the critic where it is."""
    batch, returns = some_batch()
    critic = some_critic()
    near = critic_values(critic, batch["ids"]).detach() + 0.001 * returns
    still = torch.optim.SGD(critic.parameters(), lr=0.0)
    for _ in range(2):  # nothing is left over from the step before
        critic_step(critic, still, batch, near)
    slopes = {name: p.grad.clone() for name, p in critic.named_parameters()}
    assert torch.nn.utils.get_total_norm(list(slopes.values())) < 0.9
    for name, p in critic.named_parameters():
        place = int(slopes[name].abs().argmax())
        losses = []
        for h in (1e-6, -2e-6):
            with torch.no_grad():
                p.view(-1)[place] += h
            losses.append(critic_step(critic, still, batch, near))
        with torch.no_grad():
            p.view(-1)[place] += 1e-6
        assert slopes[name].view(-1)[place].item() == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_a_batch_in_which_nothing_is_kept_changes_nothing():
    batch, returns = some_batch()
    critic = some_critic()
    before, nothing = parameters(critic), batch | {"action_mask": torch.zeros_like(batch["action_mask"])}
    assert critic_step(critic, torch.optim.SGD(critic.parameters(), lr=0.1), nothing, returns) == 0.0
    assert torch.equal(parameters(critic), before)


def test_fitting_learns_and_depends_on_the_generator_alone():
    batch, returns = some_batch()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(results))
        critic = make_critic(POLICY)
        opt = torch.optim.Adam(critic.parameters(), lr=0.02, eps=1e-5)
        losses = fit_critic(critic, opt, batch, returns, 40, rng(seed), n=3)
        results.append((losses, parameters(critic)))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])
    assert results[0][0] != results[2][0]
    assert len(losses) == 40 and sum(losses[-5:]) < 0.2 * sum(losses[:5])


def test_each_step_of_a_fit_takes_n_rows_with_their_own_returns():
    """With n above the number of rows every step sees all of them, in whatever order."""
    batch, returns = some_batch()
    fitted, stepped = some_critic(), some_critic()
    losses = fit_critic(fitted, torch.optim.SGD(fitted.parameters(), lr=0.1), batch, returns, 3, rng(), n=64)
    opt = torch.optim.SGD(stepped.parameters(), lr=0.1)
    assert losses == pytest.approx([critic_step(stepped, opt, batch, returns) for _ in range(3)], abs=1e-12)


@pytest.mark.parametrize("bucket_size", [1, 2, 32])
def test_values_of_a_batch_are_those_of_its_rows(bucket_size):
    batch, _ = some_batch()
    critic = some_critic()
    values = batch_values(critic, batch, bucket_size)
    assert values.shape == batch["logp"].shape and not values.requires_grad
    for b, n in enumerate(batch["length"].tolist()):
        alone = critic_values(critic, batch["ids"][b : b + 1, :n])[0]
        torch.testing.assert_close(values[b, : n - 1], alone, rtol=0, atol=1e-12)
    assert batch_values(critic, batch, 1)[1, 3:].eq(0).all()


def test_explained_variance_by_hand():
    returns = torch.tensor([[0.0, 0.0, 9.0], [1.0, 1.0, math.nan]], dtype=torch.float64)
    values = torch.tensor([[0.25, 0.25, 0.0], [0.75, 0.75, math.inf]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert explained_variance(values, returns, mask) == 0.75
    assert explained_variance(values + 3, returns, mask.bool()) == 0.75
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(0 * values.nan_to_num(), returns, mask) == 0.0
    assert explained_variance(1 - returns, returns, mask) == -3.0


@pytest.mark.parametrize("mask", [torch.zeros(1, 3), torch.tensor([[1, 1, 0]])])
def test_nothing_to_explain_is_refused(mask):
    with pytest.raises(ValueError, match="kept returns without variance.*more episodes"):
        explained_variance(torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 2.0]]), mask)


def test_the_critic_of_the_base():
    tok = build_tokenizer(make_tasks("all"))
    first, second = (make_base_critic(tok, n=1, steps=2) for _ in range(2))
    assert torch.equal(parameters(first), parameters(second))
    with torch.no_grad():
        first.head.weight.zero_()
    assert second.head.weight.abs().sum() > 0
    trajs, tasks = base_episodes(TinyAgent(len(tok)), tok, "heldout", 2, rng())
    names = [task.name for task in make_tasks("heldout") for _ in range(2)]
    assert [task.name for task in tasks] == names and len(trajs) == len(names)
    assert len({task.issue for task in tasks}) > 10
    batch = collate(trajs, tok.pad_id)
    assert batch_values(second, batch)[batch["action_mask"]].abs().min() > 0


def test_the_return_of_an_episode_with_nothing_but_a_verdict_is_the_verdict():
    batch = {"reward": torch.tensor([1.0, 0.0]), "action_mask": torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1]])}
    assert verdict_returns(batch).tolist() == [[1.0, 0.0, 1.0, 0.0], [0.0] * 4]


def test_explained_variance_names_what_is_wrong():
    x, mask = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64), torch.ones(1, 3)
    with pytest.raises(ValueError, match=r"shapes \[\[1, 3\], \[1, 3\], \[1, 2\]\]"):
        explained_variance(x, x, mask[:, :2])
    with pytest.raises(ValueError, match="values is nan at the kept position"):
        explained_variance(x * math.nan, x, mask)
    with pytest.raises(ValueError, match="without variance"):
        explained_variance(x, torch.tensor([[1e7, 1e7, math.nextafter(1e7, math.inf)]], dtype=torch.float64), mask)
