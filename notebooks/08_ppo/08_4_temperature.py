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
# # 8.4 Score tokens at the temperature that sampled them
#
# A sampler divides the logits by a temperature, and so changes the distribution. The ratio of PPO compares
# two probabilities of a token, stored when it was sampled and computed in training, and both must speak of
# that distribution. On a real batch we will see ratios that are 1 to the last digits when they do; ratios up
# to ten, and tokens clipped before any update, when one of them forgets the temperature; and what happens
# when *both* forget it: all ratios are 1, nothing looks wrong, and rewards that carry no information change
# the policy.
#
# **Time** 15 min. **Assumes** [8.1](08_1_clipped_update.ipynb), [8.3](08_3_whitening.ipynb). **Afterwards
# you can** tell from ratios before any update that one side forgot the temperature, and name the case in
# which ratios show nothing.

# %%
import pandas as pd
import torch

# %% [markdown]
# ## Three actions, all sums by hand
#
# Logits 2, 1, 0 and temperature 0.5. At temperature 0.5 the sampler prefers the first action more than the
# model at temperature 1 does. Only the second action earns a reward.

# %%
logits, tau = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64), 0.5
reward = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)


def log_probs(z, temperature):
    return torch.log_softmax(z / temperature, 0)  # [3]


pd.DataFrame({f'temperature {t}': log_probs(logits, t).exp().tolist() for t in (0.5, 1.0)},
             index=['first', 'second', 'third']).T.round(3)

# %% [markdown]
# What is the gradient of the expected reward? That depends on whose: of the sampler at temperature 0.5, or
# of the model at temperature 1. Both can be had exactly from autograd. The estimators below all average over
# *samples at 0.5*, by enumeration, and differ in the two log-probabilities:
#
# $$\sum_a \pi_{0.5}(a)\; r(a)\, R(a)\, \nabla \log \pi_{\text{scored}}(a),
# \qquad r = \pi_{\text{scored}} / \pi_{\text{stored}}.$$

# %%
def expected_gradient(objective):
    z = logits.clone().requires_grad_()
    return torch.autograd.grad(objective(z), z)[0]


def estimator(stored, scored, reward, clip=float('inf')):
    """Expected gradient of min(r A, clip(r) A) with A = reward, for samples at temperature tau."""
    def objective(z):
        ratio = torch.exp(log_probs(z, scored) - log_probs(logits, stored))  # [3]
        surrogate = torch.minimum(ratio * reward, ratio.clamp(1 - clip, 1 + clip) * reward)
        return (log_probs(logits, tau).exp() * surrogate).sum()
    return expected_gradient(objective)


rows = {'exact, of the sampler (0.5)': expected_gradient(lambda z: (log_probs(z, 0.5).exp() * reward).sum()),
        'stored 0.5, scored 0.5': estimator(0.5, 0.5, reward),
        'exact, of the model (1)': expected_gradient(lambda z: (log_probs(z, 1.0).exp() * reward).sum()),
        'stored 0.5, scored 1': estimator(0.5, 1.0, reward),
        'stored 0.5, scored 1, clip 0.2': estimator(0.5, 1.0, reward, clip=0.2),
        'stored 1, scored 1': estimator(1.0, 1.0, reward)}
pd.DataFrame({k: (v + 0.0).tolist() for k, v in rows.items()}, index=['first', 'second', 'third']).T.round(3)

# %% [markdown]
# Stored and scored at 0.5, the estimator is the exact gradient for the sampler: the policy that is trained
# is the one that acts. Stored at 0.5 and scored at 1 is not nonsense either: the ratio is then the
# importance weight from the one distribution to the other, and *without* the clip the gradient is exact for
# the model at 1. But the clip was made for small steps. The rewarded action has a ratio above 2, beyond 1.2, and
# its gradient is gone: nothing is left to learn from. (Chapter 13 takes up weights for a sampler that truly
# differs.)
#
# Stored and scored at 1, the ratio is 1 and the gradient is that of neither.

# %% [markdown]
# ## The mistake that does not show
#
# How wrong is the last row? Let every action earn 1. No choice is better than another, so a gradient must be
# zero.

# %%
same_for_all = torch.ones(3, dtype=torch.float64)
rows = {f'stored {stored}, scored {scored}, clip {clip}': estimator(stored, scored, same_for_all, clip)
        for stored, scored, clip in ((0.5, 0.5, 0.2), (0.5, 1.0, float('inf')), (0.5, 1.0, 0.2),
                                     (1.0, 1.0, 0.2))}
rows['probabilities at 0.5 minus those at 1'] = log_probs(logits, 0.5).exp() - log_probs(logits, 1.0).exp()
table = pd.DataFrame({k: v.tolist() for k, v in rows.items()}, index=['first', 'second', 'third']).T
table.round(3) + 0.0

# %% [markdown]
# It is not: it is $\pi_{0.5} - \pi_1$, and makes the frequent action more frequent. The frequent action was
# drawn more often than its score accounts for. A constant of the other sign, a cost for example, pushes the
# other way, toward rare actions. Follow both with step size 0.5; the entropy tells how much choice is left
# (three equal actions have 1.099).

# %%
def entropy_after(advantage, steps):
    z = logits.clone()
    for _ in range(steps):
        z = z + 0.5 * advantage * (log_probs(z, tau).exp() - log_probs(z, 1.0).exp())
    p = log_probs(z, 1.0).exp()
    return -(p * p.log()).sum().item()


pd.DataFrame({f'advantage {a:+.0f}': [entropy_after(a, n) for n in (0, 10, 50, 200)] for a in (1.0, -1.0)},
             index=pd.Index([0, 10, 50, 200], name='steps')).round(3)

# %% [markdown]
# Advantages with mean zero soften this, but do not cure it: a policy that mostly fails has a few large
# positive ones and many small negative ones, and the mistake adds a drift of its own to each. It is easily
# made. An inference engine reports log-probabilities of *its* choice (vLLM by default those of the raw
# logits; with `processed_logprobs` those after the temperature), and a trainer that scores at 1 will find
# all ratios equal to 1. That the first ratio is 1 is necessary, not sufficient: check also that the
# temperature is in.
#
# ## A real batch
#
# 64 episodes of the starting policy, sampled at 0.5. `batch['logp']` holds what the sampler stored, after
# the temperature (5.3). Advantages are the rewards, whitened over tokens (8.3). We score at three
# temperatures.

# %%
from types import SimpleNamespace

from agentrl.aggregation import loss_weights
from agentrl.base import make_rl_base
from agentrl.episodes import collate
from agentrl.packing import action_log_probs
from agentrl.ppo import clip_fraction, clipped_loss
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.whitening import masked_whiten

cfg = SimpleNamespace(prompts_per_step=8, group_size=8, max_turns=6, max_edits=1, reward='hidden',
                      step_penalty=0.0, wrong_submit=0.0, invalid_penalty=0.0, temperature=0.5,
                      fresh_names=True)
tok = build_tokenizer(make_tasks('all'))
policy, tasks = make_rl_base(tok), make_tasks('train')
batch = collate(sample_step(policy, tasks, tok, cfg, torch.Generator().manual_seed(0)), tok.pad_id)
mask = batch['action_mask']
advantages = masked_whiten(batch['reward'][:, None].expand(mask.shape), mask)
print('passed', round(batch['reward'].mean().item(), 3), ' policy tokens', mask.sum().item())

# %%
def scored_at(temperature):
    """Log-probabilities [B, T-1] of the batch, with gradient."""
    return action_log_probs(policy, batch['ids'], batch['length'], mask, temperature)


def summary(logp):
    """Ratios and clips of the batch before any update."""
    ratio = torch.exp(logp - batch['logp'])[mask].detach()
    row = {'smallest': ratio.min().item(), 'median': ratio.median().item(), 'largest': ratio.max().item()}
    row['outside 0.8 to 1.2'] = ((ratio - 1).abs() > 0.2).double().mean().item()
    for name, where in (('clipped', mask), ('A > 0', advantages > 0), ('A < 0', advantages < 0)):
        row[name] = clip_fraction(logp, batch['logp'], advantages, where).item()
    return row


scores = {t: scored_at(t) for t in (0.5, 1.0, 2.0)}
exact = (scores[0.5] - batch['logp'])[mask].abs().max() < 1e-12
print('scored at 0.5, all |log-ratio| below 1e-12:', bool(exact))
pd.DataFrame({t: summary(logp) for t, logp in scores.items()}).T.rename_axis('scored at').round(3)

# %% [markdown]
# At 0.5 the ratios are 1: the sampler with its cache and the packed forward pass of training agree. At 1, a
# sixth of all tokens lies outside the clip range although nobody has moved. Which ones? A token that was
# likely at 0.5 is less likely at 1, so its ratio is below 1; a rare one is more likely, and its ratio is far
# above. In an episode that did well the clip takes the rare tokens, so what was found by luck is not
# reinforced; in one that did badly it takes the likely ones, so habits that failed stay. In this batch
# nothing rare did well, and all the bites fall on failures.

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import SPARE_COLORS, save_figure, use_style

use_style()
prob, sign = batch['logp'][mask].exp(), advantages[mask].sign()
ratio = torch.exp(scores[1.0] - batch['logp'])[mask].detach()
clipped = ((sign > 0) & (ratio > 1.2)) | ((sign < 0) & (ratio < 0.8))
points = pd.DataFrame({'probability at 0.5': prob, 'ratio': ratio, 'sign': sign, 'clipped': clipped})
fig, ax = plt.subplots(figsize=(7.4, 4))
ax.axhspan(0.8, 1.2, color='#E8E8E8', linewidth=0)
for value, colour, marker in ((-1, SPARE_COLORS[0], 'v'), (1, SPARE_COLORS[1], '^')):
    part = points[points['sign'] == value]
    ax.scatter(part['probability at 0.5'], part['ratio'], s=24, marker=marker, facecolors='none',
               edgecolors=colour, linewidths=0.7, alpha=0.6)
    hit = part[part['clipped']]
    ax.scatter(hit['probability at 0.5'], hit['ratio'], s=46, marker=marker, color=colour)
ax.set(xlabel='probability of the sampled token at temperature 0.5', ylabel='ratio when scored at 1',
       yscale='log', xlim=(-0.02, 1.02), ylim=(0.45, 12), yticks=(0.8, 1, 1.2, 2, 5, 10),
       yticklabels=(0.8, 1, 1.2, 2, 5, 10))
ax.minorticks_off()
ax.text(0.5, 1, 'inside the clip range', va='center', color='#555555', fontsize='small')
ax.text(0.99, 0.5, 'large and filled: clipped before any update', ha='right', color='#333333')
ax.text(0.99, 6, '▲ advantage > 0', ha='right', color='#1F7A70')
ax.text(0.99, 4.7, '▼ advantage < 0', ha='right', color=SPARE_COLORS[0])
save_figure(fig, '08_4_ratio_at_the_wrong_temperature', points)

# %% [markdown]
# By word, those that lose any:

# %%
words = pd.DataFrame({'word': [tok.itos[i] for i in batch['ids'][:, 1:][mask].tolist()], 'clipped': clipped})
words = words.groupby('word')['clipped'].agg(written='size', clipped='sum')
words[words['clipped'] > 0].sort_values('clipped', ascending=False)

# %% [markdown]
# ## What is left of the gradient
#
# The direction of the whole gradient, against that of the right one (stored and scored at 0.5), and its
# length. `stored 1` means that the sampler's log-probabilities were replaced by those at temperature 1, as
# an engine would report them: all ratios are 1.

# %%
def gradient(temperature, stored):
    """Flat gradient of the clipped loss, scored at `temperature`, given the stored log-probabilities."""
    loss = clipped_loss(scored_at(temperature), stored, advantages, loss_weights(mask, 'token_mean'))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])


found = {f'stored 0.5, scored {t:g}': gradient(t, batch['logp']) for t in scores}
found['stored 1, scored 1'] = gradient(1.0, scores[1.0].detach())
right = found['stored 0.5, scored 0.5']
pd.DataFrame({name: {'cosine with the right one': torch.cosine_similarity(g, right, dim=0).item(),
                     'length': g.norm().item()} for name, g in found.items()}).T.round(3)

# %% [markdown]
# The wrong ratio leaves half of the direction. The mistake that does not show keeps most of it *in this
# batch*, because whitened advantages have mean zero. Its drift is in the constant part, so look at that
# alone: advantage 1 for every token, in four batches. In 8.3 such a gradient was noise, with cosines near
# zero between batches. Here is the same for both ways of scoring, at temperature 0.5.

# %%
from itertools import combinations


def push_of_a_constant(temperature, batch):
    """Gradient of the mean log-probability of a batch's policy tokens, flat."""
    mask = batch['action_mask']
    logp = action_log_probs(policy, batch['ids'], batch['length'], mask, temperature)
    grads = torch.autograd.grad(logp.sum() / mask.sum(), list(policy.parameters()))
    return torch.cat([g.flatten() for g in grads])


rng = torch.Generator().manual_seed(1)
batches = [collate(sample_step(policy, tasks, tok, cfg, rng), tok.pad_id) for _ in range(4)]
for temperature in (0.5, 1.0):
    pushes = [push_of_a_constant(temperature, each) for each in batches]
    cosines = [torch.cosine_similarity(a, b, dim=0).item() for a, b in combinations(pushes, 2)]
    print(f'scored at {temperature}: mean cosine between batches {sum(cosines) / len(cosines):.2f}, '
          f'from {min(cosines):.2f} to {max(cosines):.2f}')

# %% [markdown]
# Scored at 1, all batches agree on a direction that has nothing to do with reward. A batch whose advantages
# do not add up to zero (a critic that is too low, a cost that all pay) will follow it.
#
# ## What was seen
#
# Sampled and scored at 0.5 the ratios were 1 within 1e-12. Scored at 1 they went from 0.685 to 10.519, and
# 0.097 of all tokens were clipped before any update, 37 of 62 times the word `edit`; the gradient kept a
# cosine of 0.485 with the right one. With both log-probabilities at temperature 1 all ratios were 1 and the
# cosine 0.944; but a constant advantage, which should be noise (cosine 0.03 between batches), became a push
# (0.68). In the toy it took the entropy from 0.832 to 0.045, or up to 1.099 with the other sign.
#
# **Try it.** Sample at temperature 2 and score at 1: are advantages of the same sign clipped now? In the
# toy, subtract the mean reward under the sampler before using `stored 1, scored 1`: how much of the error is
# left?
