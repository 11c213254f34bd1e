# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13.1.1 Train on what an older policy sampled
#
# The weights of [section 13.1](13_1_truncated_importance_sampling.ipynb) go into the training loop. The sampler
# is the policy of some steps ago, as in any loop that samples and trains at the same time (section 13.7 builds
# one); each batch is scored again by the present policy, and the ratio of the two scores gives the weights. We
# check the loop where its answer is known, and watch the first small ratios appear.
#
# **Time** 15 min. **Assumes** [9.2](../09_grpo/09_2_training_loop.ipynb),
# [13.1](13_1_truncated_importance_sampling.ipynb). **Afterwards you can** train on batches of an older
# policy under a rule of weights, and check the loop where its answer is known.

# %%
#@save lagged
import copy
from collections import deque

import torch
from tqdm import tqdm

from agentrl.aggregation import loss_weights
from agentrl.base import DEMONSTRATED, make_rl_base
from agentrl.cache import cached
from agentrl.model import selected_log_probs
from agentrl.packing import hidden_where
from agentrl.sampling import sample_groups, sample_step
from agentrl.tasks import make_tasks
from agentrl.tis import (
    averaged_log_ratio,
    clipped_weights,
    floored_where,
    gradient_share,
    icepop_weights,
    importance_ratio,
    ratio_metrics,
    summed_log_ratio,
)
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, evaluate, group_batch, rl_update

# %% [markdown]
# ## Eight rules in one table
#
# A weighing is a function of log-ratio, mask and advantages. The last two give all tokens of a sequence the
# same ratio, averaged or summed.

# %%
#@save
WEIGHINGS = {
    'low 0.5': lambda x, mask, advantages: clipped_weights(x, mask, low=0.5),
    'low 0': lambda x, mask, advantages: clipped_weights(x, mask, low=0.0),
    'no weight': lambda x, mask, advantages: mask.double(),
    'IcePop': lambda x, mask, advantages: icepop_weights(x, mask),
    'floor, A < 0': lambda x, mask, advantages: floored_where(x, mask, advantages < 0),
    'floor, A > 0': lambda x, mask, advantages: floored_where(x, mask, advantages > 0),
    'geometric mean': lambda x, mask, advantages: clipped_weights(averaged_log_ratio(x, mask), mask),
    'whole sequence': lambda x, mask, advantages: clipped_weights(summed_log_ratio(x, mask), mask),
}

# %%
x = torch.tensor([[-5.0, 0.2, -0.3], [-5.0, 0.2, 0.0]], dtype=torch.float64)         # [B, T-1]
mask, advantages = torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.tensor([[-1.0] * 3, [1.0] * 3])
for name, weigh in WEIGHINGS.items():
    rows = [[round(w, 3) for w in row] for row in weigh(x, mask, advantages).tolist()]
    print(f'{name:15} A = -1: {rows[0]}   A = +1: {rows[1][:2]}')

# %% [markdown]
# ## Score the batch again
#
# The log-probabilities stored while sampling belong to the rollout policy. The policy that is about to be
# updated scores the same tokens now, and the entropy of its distribution at each of them comes along.

# %%
#@save
def score_tokens(policy, batch, temperature):
    """Log-probabilities [B, T-1] of the policy's tokens, with graph, and entropies [B, T-1]; 0 elsewhere."""
    ids, mask = batch['ids'], batch['action_mask'].bool()
    hidden, row, column = hidden_where(policy, ids[:, :-1], batch['length'] - 1, mask)
    logits = policy.head(hidden) / temperature                                    # [M, V]
    logp = selected_log_probs(logits, ids[row, column + 1])                       # [M]
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()   # [M]
    empty = logp.new_zeros(mask.shape)
    return empty.index_put((row, column), logp), empty.index_put((row, column), entropy)

# %%
from agentrl.model import sequence_log_probs

tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(prompts_per_step=4, group_size=16, lr=0.2)
base = make_rl_base(tok)
trajs = sample_step(base, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(0))
batch, advantages = group_batch(trajs, tok, cfg)
with torch.no_grad():
    logp, entropy = score_tokens(base, batch, cfg.temperature)
    padded = sequence_log_probs(base, batch['ids']).where(batch['action_mask'], 0.0)
print('the packed scores are those of a full forward pass:', bool((logp - padded).abs().max() < 1e-12))
print('and those of the sampler, which is the same policy:', bool((logp - batch['logp']).abs().max() < 1e-12))

# %% [markdown]
# ## Weigh it
#
# The weight multiplies PPO's clipped loss. Since it is not negative and PPO's clip asks only for the sign of
# the advantage, that is the same as to multiply the advantage: so `rl_update` of section 9.2 does the update
# unchanged, with the new scores in the place of the old ones.
#
# `gradient_below` asks for the gradient of the tokens with $r < 0.5$ alone. That takes two more backward
# passes.

# %%
#@save
def weigh_batch(policy, batch, advantages, weighing, cfg):
    """Importance weights for a batch that an older policy sampled: what each token gets, and metrics.

    Arrays [B, T-1]: rollout_logp as sampled, train_logp of `policy`, entropy, advantage, ratio, weight.
    """
    with torch.no_grad():
        logp, entropy = score_tokens(policy, batch, cfg.temperature)
    mask, log_ratio = batch['action_mask'], logp - batch['logp']
    weight = WEIGHINGS[weighing](log_ratio, mask, advantages)
    metrics = ratio_metrics(log_ratio, weight, advantages, mask) | {
        'entropy': (entropy.sum() / mask.sum()).item(),
        'parameter_norm': torch.nn.utils.parameters_to_vector(policy.parameters()).norm().item()}
    tokens = {'rollout_logp': batch['logp'], 'train_logp': logp, 'entropy': entropy,
              'advantage': advantages, 'ratio': importance_ratio(log_ratio, mask), 'weight': weight}
    return tokens, metrics


def gradient_below(policy, batch, tokens, cfg, low=0.5):
    """`gradient_share` of the tokens with a ratio under `low`, in the first gradient of a weighed batch."""
    mask, logp = batch['action_mask'], score_tokens(policy, batch, cfg.temperature)[0]
    coefficients = loss_weights(mask, cfg.loss_agg) * tokens['weight'] * tokens['advantage']
    return gradient_share(logp, coefficients, mask.bool() & (tokens['ratio'] < low), list(policy.parameters()))

# %%
import pandas as pd

from agentrl.ppo import clipped_loss

learner = make_rl_base(tok)
for _ in range(8):
    rl_update(learner, torch.optim.SGD(learner.parameters(), lr=cfg.lr), batch, advantages, cfg)
measured = {name: weigh_batch(learner, batch, advantages, name, cfg) for name in WEIGHINGS}
table = pd.DataFrame({name: metrics | {'gradient_below': gradient_below(learner, batch, tokens, cfg)}
                      for name, (tokens, metrics) in measured.items()}).T
table[['kl', 'below', 'min_log_ratio', 'ess', 'signal_below', 'gradient_below']].round(3)

# %% [markdown]
# Sixteen updates are made on one batch here, more than anybody would do, to have small ratios at once. The
# rules differ in what these tokens carry. Two checks of the last column and of the trick with the advantages,
# by plain autograd on the padded forward pass:

# %%
tokens, _ = measured['low 0.5']
mask, low = batch['action_mask'], batch['action_mask'] & (tokens['ratio'] < 0.5)


def gradient_by_hand(keep):
    """Gradient of the mean over all tokens of w times the clipped loss of the tokens in `keep`."""
    logp = sequence_log_probs(learner, batch['ids'])
    rows = loss_weights(mask, 'token_mean') * keep * tokens['weight']                # the weight on the loss
    loss = clipped_loss(logp, tokens['train_logp'], advantages, rows)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(learner.parameters()))])


share = gradient_by_hand(low).norm() / gradient_by_hand(mask).norm()
print('share of the gradient agrees:', bool(abs(share - gradient_below(learner, batch, tokens, cfg)) < 1e-9))
logp = score_tokens(learner, batch, 1.0)[0]
loss = clipped_loss(logp, tokens['train_logp'], advantages * tokens['weight'], loss_weights(mask, 'token_mean'))
on_advantage = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(learner.parameters()))])
print('weight on the advantage or on the loss:', bool((on_advantage - gradient_by_hand(mask)).norm() < 1e-12))

# %% [markdown]
# ## The loop
#
# It is the loop of 9.2 with three changes: the sampler is the policy of `lag` steps ago (the first steps
# sample from the start), the batch is weighed before it is trained on, and the optimiser is plain SGD unless
# asked otherwise. Adam divides a gradient by its recent size, so it would hide how large the gradients are,
# which is what we want to see. `look` sees every token of every step; section 13.2 writes it to disk.

# %%
#@save
OPTIMIZERS = {
    'SGD': lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    'Adam': lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, eps=1e-5, fused=True),
}
EVERY = 4                                               # steps between looks that cost more
HISTORY = ('step', 'episodes', 'pass_rate', 'submit_rate', 'turns', 'malformed', 'tokens', 'policy_tokens')


def own_episodes(policy, tasks, tok, cfg, n=64):
    """What the present policy does in `n` episodes or a few more, from draws of its own: dict of own_*."""
    rng = torch.Generator().manual_seed(cfg.seed)
    stats = evaluate(policy, tasks, tok, -(-n // len(tasks)), rng, cfg)
    return {'own_pass_rate': stats['pass_rate'], 'own_truncated': 1 - stats['submit_rate'],
            'own_policy_tokens': stats['policy_tokens']}


def look_away(step, version, trajs, batch, tokens):
    """The default of train_lagged's `look`: no dump."""

# %%
#@save
def train_lagged(policy, tasks, tok, cfg, weighing='low 0.5', lag=16, optimizer='SGD', steps=40, look=look_away):
    """Train `policy` in place on episodes of itself `lag` steps ago; returns the history, a row a step.

    Each batch is scored again by the present policy before its updates; the ratio of the two gives the
    weights. Every EVERY steps a row also has gradient_below and the own_* figures. look(step, version, trajs,
    batch, tokens) sees what weigh_batch gave to each token; version: updates that the sampler had seen.
    """
    generator, history = torch.Generator().manual_seed(cfg.seed), []
    opt, past = OPTIMIZERS[optimizer](policy.parameters(), cfg.lr), deque(maxlen=lag + 1)
    for step in tqdm(range(steps), desc=f'RL, {weighing}'):
        past.append((step * cfg.epochs * cfg.minibatches, copy.deepcopy(policy)))
        version, behaviour = past[0]
        trajs = sample_step(behaviour, tasks, tok, cfg, generator)
        batch, advantages = group_batch(trajs, tok, cfg)
        tokens, metrics = weigh_batch(policy, batch, advantages, weighing, cfg)
        look(step, version, trajs, batch, tokens)
        if step % EVERY == 0:
            metrics |= {'gradient_below': gradient_below(policy, batch, tokens, cfg)}
            metrics |= own_episodes(policy, tasks, tok, cfg)
        update = rl_update(policy, opt, batch | {'logp': tokens['train_logp']}, advantages * tokens['weight'], cfg)
        row = {'step': step} | behavior_stats(trajs) | metrics | update
        history.append({name: row[name] for name in (*HISTORY, *metrics, *update)})
    return history

# %% [markdown]
# ## One run, by its settings
#
# The study of the next section changes one line of `LAGGED` an arm. The setting is small on purpose: four
# tasks, the first of each demonstrated edit, four prompts of sixteen episodes a step, names drawn afresh, and
# a sampler 32 updates, that is 16 steps, old. Step size and lag were chosen on seeds 0, 1 and 3, which the
# study does not use, so that the two main rules differ within forty steps. With half the lag, small steps did
# no lasting harm under either rule, and large ones lost the run under both.

# %%
#@save
LAGGED = {'weighing': 'low 0.5', 'lag': 16, 'optimizer': 'SGD', 'lr': 0.2, 'steps': 40, 'n_tasks': 4,
          'loss_agg': 'token_mean', 'wrong_submit': 0.0}


def few_tasks(n):
    """The first train task of each demonstrated edit (n=4), or all twenty."""
    tasks = make_tasks('train')
    firsts = [next(task for task in tasks if task.edit == edit) for edit in DEMONSTRATED]
    choices = {len(firsts): firsts, len(tasks): tasks}
    if n not in choices:
        raise ValueError(f'n_tasks={n!r} is not one of {", ".join(map(str, choices))}')
    return choices[n]


@cached
def train_weighed(settings, seed, base_seed, evaluation):
    """Train the RL base under LAGGED with `settings` in place: history, and heldout (256 own episodes).

    The final policy plays 256 episodes or a few more of the tasks that it was trained on.
    """
    wanted = LAGGED | settings
    tok, tasks = build_tokenizer(make_tasks('all')), few_tasks(wanted.pop('n_tasks'))
    cfg = RLConfig(prompts_per_step=4, group_size=16, seed=seed,
                   **{name: wanted.pop(name) for name in ('lr', 'loss_agg', 'wrong_submit')})
    policy = make_rl_base(tok, base_seed)
    history = train_lagged(policy, tasks, tok, cfg, **wanted)
    rng = torch.Generator().manual_seed(evaluation['seed'])
    trajs = sample_groups(policy, tasks, tok, cfg, rng, n=-(-256 // len(tasks)))
    return {'history': history, 'heldout': behavior_stats(trajs)}

# %%
for wrong in (lambda: few_tasks(7), lambda: RLConfig(lr=0.0)):
    try:
        wrong()
    except ValueError as error:
        print(error)
print([task.name for task in few_tasks(4)])

# %% [markdown]
# ## Two things that are known
#
# Without lag the ratios are 1, so every rule must give the plain loop. And with lag, two
# rules that differ below 0.5 only are the same, to the bit, until the first such ratio.

# %%
small = RLConfig(prompts_per_step=4, group_size=8, lr=0.2, seed=1)


def first_steps(weighing, lag, steps=4):
    """History of a short run, as a table."""
    return pd.DataFrame(train_lagged(make_rl_base(tok), few_tasks(4), tok, small, weighing, lag, steps=steps))


no_lag = [first_steps(weighing, lag=0, steps=2) for weighing in ('low 0.5', 'no weight')]
print('no lag: the same pass rate and norm:', bool((no_lag[0][['pass_rate', 'grad_norm']]
                                                    - no_lag[1][['pass_rate', 'grad_norm']]).abs().max().max() < 1e-9))
half, zero = first_steps('low 0.5', lag=8), first_steps('low 0', lag=8)
beside = half[['step', 'below', 'min_log_ratio', 'grad_norm']].assign(grad_norm_low_0=zero['grad_norm'])
beside.round(4) + 0.0

# %% [markdown]
# ## What was seen
#
# The loop does what is known of it: without lag every rule is the plain loop, and with lag the rules with and
# without the floor have the same gradient norm, 0.382, until the first small ratio is trained on. That is at
# step 1, two updates away from the sampler: 0.0218 of the tokens, the smallest log-ratio −2.4628, and the
# norms are 0.5773 with the floor and 0.4081 without. Nothing can be seen in the episodes then.
#
# **Try it.** Print the table of rules with 2 updates on the batch, `range(1)`, and with 40,
# `range(20)`. Which rule lets `gradient_below` grow with it, and which does not?
