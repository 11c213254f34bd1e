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
# # 8.5 Close the PPO loop: sample, judge, and update several times
#
# All parts of PPO are there: a sampler, a critic, advantages, two clipped losses. Here they become a loop of
# some forty lines. We watch one batch being used for six steps and see the ratios leave 1, then train the
# starting policy for a few steps and look at what the loop reports about itself. The chapters after this one
# drop the critic (9.2) or give it another clock (12.2), and keep the rest.
#
# **Time** 10 min. **Assumes** [7.2](../07_advantages/07_2_critic.ipynb), [8.1](08_1_clipped_update.ipynb)
# to [8.3](08_3_whitening.ipynb). **Afterwards you can** write an update of several epochs with a critic,
# and read its KL, clipped share and explained variance.

# %%
from types import SimpleNamespace

import torch

from agentrl.aggregation import loss_weights
from agentrl.base import make_rl_base
from agentrl.credit import gae_advantages, outcome_rewards
from agentrl.critic import critic_values, explained_variance, make_critic
from agentrl.episodes import collate, take_rows
from agentrl.gradient import masked_mean
from agentrl.packing import action_log_probs, hidden_where
from agentrl.ppo import clip_fraction, clipped_loss, probability_ratio
from agentrl.sampling import sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.value import value_loss
from agentrl.whitening import masked_whiten

# %% [markdown]
# ## What one may choose
#
# The first three lines describe what is sampled, the rest the update. Against the paper (Schulman et al.
# 2017): episodes end by themselves, so nothing is bootstrapped; policy and critic are two networks, so their
# losses need no coefficient between them; there is no entropy bonus; γ = 1, since six turns need no
# discount.

# %%
cfg = SimpleNamespace(prompts_per_step=8, group_size=8, max_turns=6, max_edits=1, temperature=1.0,
                      fresh_names=True, reward='hidden', step_penalty=0.0, wrong_submit=0.0,
                      invalid_penalty=0.0,
                      gamma=1.0, lam=0.95, clip=0.2, value_clip=0.2, epochs=3, minibatches=2,
                      lr=3e-4, max_grad_norm=1.0, seed=0)
tok, tasks = build_tokenizer(make_tasks('all')), make_tasks('train')

# %% [markdown]
# ## Values where they are asked for
#
# Like log-probabilities, values are needed only where the policy wrote, so the critic reads packed rows
# (3.3): the same numbers as `critic_values` of section 7.2, without the padding.

# %%
def kept_values(critic, ids, length, mask):
    """critic_values where mask is set, 0 elsewhere: ids [B, T], length [B], mask [B, T-1] -> [B, T-1]."""
    hidden, row, column = hidden_where(critic.trunk, ids[:, :-1], length - 1, mask)
    values = critic.head(hidden)[:, 0]
    return values.new_zeros(mask.shape).index_put((row, column), values)


policy = make_rl_base(tok)
critic = make_critic(policy)
trajs = sample_step(policy, tasks, tok, cfg, torch.Generator().manual_seed(0))
batch = collate(trajs, tok.pad_id)
probe = make_critic(policy)
torch.nn.init.normal_(probe.head.weight, generator=torch.Generator().manual_seed(0))  # a new critic says 0
with torch.no_grad():
    packed = kept_values(probe, batch['ids'], batch['length'], batch['action_mask'])
    plain = critic_values(probe, batch['ids']).masked_fill(~batch['action_mask'], 0.0)
print('packed and padded agree:', bool((packed - plain).abs().max() < 1e-10))
print('deviation of the values: ', round(packed[batch['action_mask']].std().item(), 1))

# %% [markdown]
# ## What stays fixed during an update
#
# A batch is judged once, by the critic as it was when the episodes were sampled: values, advantages and
# returns are numbers from then on, like the log-probabilities that the sampler stored. The critic's targets
# are the λ-returns, before whitening; the policy's advantages are whitened over tokens, because its loss
# counts tokens (8.3).

# %%
def judge(trajs, critic, cfg):
    """The trajectories as a batch, with values, returns and whitened advantages [B, T-1]."""
    batch = collate(trajs, tok.pad_id)
    mask = batch['action_mask']
    with torch.no_grad():
        values = kept_values(critic, batch['ids'], batch['length'], mask)
    rewards = outcome_rewards(batch['reward'], mask)
    advantages, returns = gae_advantages(rewards, values, mask, cfg.gamma, cfg.lam)
    return batch | {'values': values, 'returns': returns, 'advantages': masked_whiten(advantages, mask)}


batch = judge(trajs, critic, cfg)
passed = batch['reward'].argmax()
kept = batch['action_mask'][passed]
print(tok.decode(batch['ids'][passed, 1:][kept].tolist()))
for name in ('values', 'returns', 'advantages'):
    print(f'{name:10}', [round(x, 2) for x in batch[name][passed][kept].tolist()])

# %% [markdown]
# The first episode of the batch that passed. The new critic says 0 everywhere, so returns are the verdict,
# faded by 0.95 a token from the end. That is a prejudice of λ, not knowledge; it goes as the critic learns.
#
# ## One step of the optimiser
#
# The two losses are added up; each network gets the gradient of its own, and each gradient is bounded by
# itself. The step also reports what one wants to know of a PPO run: the share of clipped tokens, and how far
# the policy has moved from the one that sampled. For the latter we take $\mathbb{E}[r - 1 - \log r]$, an
# estimate of the KL divergence between old and new policy that is never negative (Schulman 2020, where it is
# called k3).

# %%
def minibatch_step(policy, critic, opt, part, cfg):
    """One optimiser step on the rows of `part`; returns what it saw before the step."""
    mask = part['action_mask']
    logp = action_log_probs(policy, part['ids'], part['length'], mask, cfg.temperature)  # [b, t-1]
    values = kept_values(critic, part['ids'], part['length'], mask)  # [b, t-1]
    loss = clipped_loss(logp, part['logp'], part['advantages'], loss_weights(mask, 'token_mean'), cfg.clip)
    error = value_loss(values, part['values'], part['returns'], mask, cfg.value_clip)
    opt.zero_grad()
    (loss + error).backward()
    norms = [torch.nn.utils.clip_grad_norm_(net.parameters(), cfg.max_grad_norm) for net in (policy, critic)]
    opt.step()
    ratio = probability_ratio(logp.detach(), part['logp'], mask)
    return {'largest ratio': ratio.max().item(), 'kl': masked_mean(ratio - 1 - ratio.log(), mask).item(),
            'clipped': clip_fraction(logp, part['logp'], part['advantages'], mask, cfg.clip).item(),
            'value loss': error.item(), 'gradient norm': norms[0].item()}


# %% [markdown]
# ## An update: several epochs
#
# Each epoch cuts the batch anew, at random, so that no two episodes always share a minibatch.

# %%
def ppo_update(policy, critic, opt, batch, cfg, generator):
    """`epochs` × `minibatches` steps on one batch; a list of what each step saw."""
    return [minibatch_step(policy, critic, opt, take_rows(batch, rows), cfg)
            for _ in range(cfg.epochs)
            for rows in torch.randperm(len(batch['ids']), generator=generator).chunk(cfg.minibatches)]


def make_optimiser(policy, critic, cfg):
    """Adam for both networks."""
    return torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=cfg.lr, eps=1e-5, fused=True)


# %%
import pandas as pd

opt = make_optimiser(policy, critic, cfg)
seen = ppo_update(policy, critic, opt, batch, cfg, torch.Generator().manual_seed(1))
pd.DataFrame(seen).assign(epoch=[1 + n // cfg.minibatches for n in range(len(seen))]).set_index('epoch').round(4) + 0.0

# %% [markdown]
# The first row has ratio 1 and no distance: it is the plain policy gradient (8.1). Already the second step
# works with old episodes, and a few tokens are clipped; from the second epoch on it is one in fifteen or
# more, and single ratios are far outside the range. That is what the clip allows: it takes away the pull,
# it does not hold anything fast. Where did the tokens of the batch go in these six steps?

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import SPARE_COLORS, save_figure, use_style

use_style()
mask = batch['action_mask']
with torch.no_grad():
    logp = action_log_probs(policy, batch['ids'], batch['length'], mask)
moved = pd.DataFrame({'ratio': torch.exp(logp - batch['logp'])[mask], 'A > 0': batch['advantages'][mask] > 0})
bins = [0.375 + 0.05 * i for i in range(30)]
fig, axes = plt.subplots(2, 1, sharex=True, figsize=(6.4, 4.2))
for ax, good, colour in ((axes[0], True, SPARE_COLORS[1]), (axes[1], False, SPARE_COLORS[0])):
    part = moved.loc[moved['A > 0'] == good, 'ratio']
    ax.hist(part.clip(0.4, 1.8), bins=bins, color=colour)
    ax.axvspan(0.8, 1.2, color='#E8E8E8', linewidth=0, zorder=0)
    ax.text(0.42, 0.8, f'advantage {">" if good else "<"} 0', color=colour,
            transform=ax.get_xaxis_transform())
    ax.text(1.78, 0.8, f'above 1.2: {(part > 1.2).sum()}\nbelow 0.8: {(part < 0.8).sum()}', ha='right',
            va='center', transform=ax.get_xaxis_transform(), fontsize='small')
    ax.set(ylabel='tokens', yscale='log', xticks=(0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8))
axes[1].set_xlabel('ratio of new to old probability after the update (outer bars: and beyond)')
save_figure(fig, '08_5_ratios_after_an_update', moved)

# %% [markdown]
# ## The loop
#
# And around it, sampling.

# %%
def train_ppo(policy, critic, cfg, steps):
    """Train both networks in place; a row of behaviour and update a step."""
    rng = torch.Generator().manual_seed(cfg.seed)
    opt, history = make_optimiser(policy, critic, cfg), []
    for step in range(steps):
        trajs = sample_step(policy, tasks, tok, cfg, rng)
        batch = judge(trajs, critic, cfg)
        seen = pd.DataFrame(ppo_update(policy, critic, opt, batch, cfg, rng))
        infos = pd.DataFrame([traj.info for traj in trajs])
        explained = explained_variance(batch['values'], batch['returns'], batch['action_mask'])
        history.append({'step': step, 'pass': infos['hidden_pass'].mean(), 'reads': infos['n_reads'].mean(),
                        'turns': infos['n_turns'].mean(), 'explained': explained,
                        'kl at the end': seen['kl'].iloc[-1], 'clipped': seen['clipped'].mean()})
    return pd.DataFrame(history).set_index('step')


cfg.epochs, cfg.lr = 2, 7e-4
policy = make_rl_base(tok)
history = train_ppo(policy, make_critic(policy), cfg, steps=6)
history.round(3) + 0.0

# %% [markdown]
# The columns are what one looks at in the log of a PPO run. *pass* should rise and does; six steps are
# enough for this agent to find that reading pays. *kl at the end* says how far one update moves the policy:
# if it grows from step to step, use fewer epochs or a smaller learning rate. (Many programs end an update
# early when it passes a bound.) *clipped* is the share of tokens that had done enough. And *explained* tells
# of a critic that has learned next to nothing in twenty steps of its own; section 7.2 says how much there
# is to learn. Until then λ fades the verdict and whitening supplies the baseline, and it is them that the
# policy has learned from.
#
# ## What was seen
#
# The first step of an update has ratio 1 and distance 0; two epochs later single ratios are at 3.4684 and
# 0.0949 of the tokens are clipped, although nobody asked any token for more than 1.2. In six steps of two
# epochs the pass rate went from 0.203 to 0.641 and reads from 0.641 to 1.094, with a critic that explained
# no more than 0.013 of the variance of its returns.
#
# **Try it.** Set `cfg.epochs` to 6 in the last cell and watch *kl at the end*. Then give the critic a
# learning rate of its own, ten times that of the policy (two groups in `make_optimiser`): does
# *explained* move, and does *pass*?
