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
# # 7.3 Let one call be one step
#
# GAE counts steps, and in 7.1 a step was a token. But an agent decides call by call: what follows `<call>
# edit` is mostly grammar. If λ fades credit at every token, a call of four tokens fades it four times. Here
# time passes once a call: rewards are summed over the call, the critic is asked at its start, and all its
# tokens share one advantage. We build it on top of the token-level function, prove two identities, and
# compute how far credit reaches at the usual λ = 0.95: six calls or twenty.
#
# **Time** 15 min. **Assumes** [7.1](07_1_returns_and_gae.ipynb), [7.2](07_2_critic.ipynb). **Afterwards you
# can** compute one advantage for each call, and say after how many calls credit has faded at a given λ.

# %%
#@save turns
import torch
import torch.nn.functional as F

from agentrl.credit import check_gae, gae_advantages
from agentrl.gradient import keep_only

# %% [markdown]
# ## Two calls by hand
#
# `<call> read </call>` costs 0.1, `<call> submit </call>` costs 0.1 and earns 1. The critic says 0.5 at the
# start of the first call and 0.7 at the start of the second; what it says inside the calls is not asked.
# Steps are calls now:
#
# $$\delta_k = r_k + \gamma V(s_{k+1}) - V(s_k), \qquad
# A_k = \sum_{j \ge k} (\gamma\lambda)^{j-k}\, \delta_j.$$
#
# With γ = 1 and λ = 0.5: $\delta_1 = -0.1 + 0.7 - 0.5 = 0.1$ and $\delta_2 = 0.9 - 0.7 = 0.2$, so $A_2 =
# 0.2$ and $A_1 = 0.1 + 0.5 \cdot 0.2 = 0.2$. As loops over one episode:

# %%
def turn_gae_in_loops(rewards, values, mask, turn_ids, gamma, lam):
    """The definition, for one episode given as lists over columns."""
    kept = [t for t in range(len(mask)) if mask[t]]
    calls = sorted({turn_ids[t] for t in kept})
    own = {k: [t for t in kept if turn_ids[t] == k] for k in calls}
    reward = [sum(rewards[t] for t in own[k]) for k in calls]
    value = [values[own[k][0]] for k in calls] + [0.0]
    delta = [reward[i] + gamma * value[i + 1] - value[i] for i in range(len(calls))]
    result = {k: sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(calls)))
              for i, k in enumerate(calls)}
    return [result[turn_ids[t]] if mask[t] else 0.0 for t in range(len(mask))]


mask = [1, 1, 1, 0, 0, 0, 1, 1, 1]  # read, three tokens of observation, submit
turn_ids = [0, 0, 0, 0, 0, 0, 1, 1, 1]
rewards = [0, 0, -0.1, 0, 0, 0, 0, 0, 0.9]
values = [0.5, 0.2, 0.3, 9.0, 9.0, 9.0, 0.7, 0.1, 0.9]
[round(a, 3) for a in turn_gae_in_loops(rewards, values, mask, turn_ids, gamma=1.0, lam=0.5)]

# %% [markdown]
# ## Where a call starts
#
# `turn_ids` says for each column to which call its token belongs: it is `batch['turn'][:, 1:]` (5.2), where
# prompt and padding have −1 and an observation the number of the call that it answers. A call starts at a
# kept column whose number is larger than that of all kept columns before it. What the numbers are is of no
# account: calls 0, 1 and 2 are the same as calls 3, 40 and ten million. Another shape, numbers that
# fall, or −1 under the mask mean that mask and turns do not belong together; the usual cause is a forgotten
# `[:, 1:]`.

# %%
#@save
def call_starts(mask, turn_ids):
    """True at the first kept column of each call: mask, turn_ids [B, T-1] -> bool [B, T-1].

    ValueError for other shapes, turns that are no whole numbers, and for kept columns whose turn is negative or
    falls within a row.
    """
    if turn_ids.is_floating_point() or turn_ids.dtype == torch.bool:
        raise ValueError(f'turn_ids are {turn_ids.dtype}; allowed: whole numbers, such as torch.long')
    if turn_ids.shape != mask.shape:
        raise ValueError(f'turn_ids have shape {list(turn_ids.shape)}; allowed: {list(mask.shape)}, as mask. '
                         "Of a batch, take batch['turn'][:, 1:]")
    turn = turn_ids.masked_fill(~mask.bool(), -1)  # [B, T-1]
    before = F.pad(turn.cummax(1).values[:, :-1], (1, 0), value=-1)
    if (wrong := mask.bool() & ((turn < 0) | (turn < before))).any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(f'turn {turn[row, column].item()} at the kept column {column} of row {row}, after '
                         f'turn {before[row, column].item()}; turns must be 0 or more and must not fall')
    return turn > before


# %%
mask, turn_ids = torch.tensor([mask], dtype=torch.bool), torch.tensor([turn_ids])
print(call_starts(mask, turn_ids).int().tolist())
try:
    call_starts(mask, 1 - turn_ids)
except ValueError as error:
    print(error)

# %% [markdown]
# ## GAE on a grid of calls
#
# Rewards and values are gathered into a grid [B, K], one column per call that keeps a token. On it
# `gae_advantages` of 7.1 does the work. The result is handed back to the tokens.
#
# `returns` are again advantage plus value, now the value of the call's start: the λ-return of the call, the
# same for all of its tokens.

# %%
#@save
def turn_advantages(rewards, values, mask, turn_ids, gamma, lam):
    """Advantages and returns, [B, T-1] each, by GAE (Schulman et al. 2016) with one call as one step.

    rewards, values, mask, turn_ids: [B, T-1]. A call's reward is the sum over its kept tokens, its value that
    of its first kept token; all of them get its advantage, and its return, advantage + value. Other positions
    get 0. gamma and lam count calls. No gradient flows. ValueError as in gae_advantages and call_starts.
    """
    check_gae(rewards, values, mask, gamma, lam)
    starts = call_starts(mask, turn_ids)  # [B, T-1]
    call = (starts.cumsum(1) - 1).clamp(min=0)  # [B, T-1], place of the call among the kept ones of its row
    rewards, values = (x if x.is_floating_point() else x.double() for x in (rewards, values))

    def by_call(x):
        return x.new_zeros(len(x), int(call.max()) + 1).scatter_add(1, call, x)  # [B, K]

    grid = by_call(rewards), by_call(keep_only(values, starts)), by_call(starts.long())
    return tuple(keep_only(x.gather(1, call), mask) for x in gae_advantages(*grid, gamma, lam))


# %%
tensors = [torch.tensor([x], dtype=torch.float64) for x in (rewards, values)]
advantages, returns = turn_advantages(*tensors, mask, turn_ids, gamma=1.0, lam=0.5)
print('advantages', advantages.round(decimals=3).tolist())
print('returns   ', returns.round(decimals=3).tolist())

# %% [markdown]
# A hundred random episodes of up to six calls, some of them empty, with gaps for observations, against the
# loops.

# %%
def random_episodes(rng, rows=100, columns=40):
    """rewards, values, mask, turn_ids of episodes in which calls and observations have random lengths."""
    steps = torch.rand(rows, columns, generator=rng, dtype=torch.float64) < 0.15
    turn_ids = steps.cumsum(1).clamp(max=5)
    mask = torch.rand(rows, columns, generator=rng, dtype=torch.float64) < 0.4
    rewards, values = torch.randn(2, rows, columns, generator=rng, dtype=torch.float64)
    return keep_only(rewards, mask), values, mask, turn_ids


episodes = random_episodes(torch.Generator().manual_seed(0))
for gamma, lam in ((1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (1.0, 0.0)):
    advantages, _ = turn_advantages(*episodes, gamma, lam)
    loops = [turn_gae_in_loops(*(x[b].tolist() for x in episodes), gamma, lam) for b in range(100)]
    worst = (advantages - torch.tensor(loops, dtype=torch.float64)).abs().max().item()
    print(f'gamma {gamma}, lambda {lam}: agree {worst < 1e-12}')

# %% [markdown]
# ## Two identities
#
# **With γ = λ = 1** the values between cancel: $A_k = \sum_{j \ge k} r_j - V(s_k)$, what was earned from
# call k on, minus what was expected at its start. Proof: in the sum of the surprises,
#
# $$\sum_{j \ge k} \big(r_j + V(s_{j+1}) - V(s_j)\big),$$
#
# each value after the first appears once with plus and once with minus, and the value after the end is 0.
#
# **If every call is one token**, call level and token level are the same thing, for any γ and λ: the grid
# is the row of kept tokens.

# %%
rewards, values, mask, turn_ids = episodes
advantages, _ = turn_advantages(*episodes, 1.0, 1.0)
worst = 0.0
for b, t in mask.nonzero().tolist():
    own = mask[b] & (turn_ids[b] == turn_ids[b, t])
    earned = rewards[b][mask[b] & (turn_ids[b] >= turn_ids[b, t])].sum()
    worst = max(worst, abs(advantages[b, t] - (earned - values[b][own][0])).item())
print('rewards from the call on, minus the value of its start:', worst < 1e-12)

one_token = mask.cumsum(1)  # a new call at every kept token
by_turn = turn_advantages(rewards, values, mask, one_token, 0.99, 0.9)
by_token = gae_advantages(rewards, values, mask, 0.99, 0.9)
print('calls of one token:', [torch.equal(a, b) for a, b in zip(by_turn, by_token)])

# %% [markdown]
# ## How far credit reaches
#
# λ weighs a surprise j steps later by $\lambda^j$, so the weights add up to $1/(1-\lambda)$ steps: 20 at
# 0.95. Twenty *what*? Count the tokens of real calls, in 160 episodes of the RL base.

# %%
import pandas as pd

from agentrl.base import make_rl_base
from agentrl.credit import outcome_rewards
from agentrl.critic import base_episodes, batch_values, make_base_critic
from agentrl.episodes import collate
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
trajs, _ = base_episodes(make_rl_base(tok), tok, 'train', 8, torch.Generator().manual_seed(1))
batch = collate(trajs, tok.pad_id)
mask, turn_ids = batch['action_mask'], batch['turn'][:, 1:]
lengths = pd.Series([int((mask[b] & (turn_ids[b] == k)).sum()) for b in range(len(mask))
                     for k in range(trajs[b].info['n_turns'])])
print(lengths.value_counts().sort_index().rename_axis('tokens').rename('calls').to_frame().T)
print('tokens a call:', round(lengths.mean(), 2))

# %% [markdown]
# Nearly all calls have three or four. So 0.95 a token is about $0.95^{3.31} = 0.844$ a call, and its 20
# tokens are six calls.

# %%
rows = []
for name, lam, tokens in (('0.95 a call', 0.95, 1), ('0.95 a token', 0.95, lengths.mean()),
                          ('0.9 a call', 0.9, 1), ('0.99 a token', 0.99, lengths.mean())):
    rows.append([name, lam ** tokens, 1 / (1 - lam) / tokens, *(lam ** (tokens * j) for j in (1, 2, 3, 5))])
columns = ['lambda', 'a call', 'reach in calls', *(f'{j} calls later' for j in (1, 2, 3, 5))]
pd.DataFrame(rows, columns=columns).round(3)

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import arm_color, save_figure, use_style

use_style()
later = pd.Series(range(21), name='calls_later')
table = pd.DataFrame({'calls_later': later, 'per_call': 0.95 ** later, '3_tokens_a_call': 0.95 ** (3 * later),
                      '4_tokens_a_call': 0.95 ** (4 * later)})
fig, ax = plt.subplots()
ax.plot(later, table['per_call'], color=arm_color('turn GAE'))
ax.fill_between(later, table['3_tokens_a_call'], table['4_tokens_a_call'], color=arm_color('token GAE'),
                alpha=0.6)
ax.axvline(5, color='#888888', linewidth=1, linestyle=':')
ax.text(5.2, 0.02, 'the sixth and last call', color='#666666', fontsize='small')
ax.text(9, 0.68, 'λ = 0.95 a call', color=arm_color('turn GAE'))
ax.text(7, 0.39, 'λ = 0.95 a token,\ncalls of 3 (top) to 4 tokens', color='#2E7CA8')
ax.set(xlabel='how many calls later something surprising happens', ylabel='weight in the advantage',
       xlim=(0, 20), ylim=(0, 1), xticks=range(0, 21, 5))
save_figure(fig, '07_3_reach', table)

# %% [markdown]
# ## One real episode
#
# The first episode of the batch that reads, tests and passes, under the better critic of 7.2 (the one that
# was fitted to 1600 episodes). First by call: the value at its start, its surprise $\delta_k$, and its
# advantage.

# %%
row = next(b for b, traj in enumerate(trajs) if traj.reward and traj.info['n_reads'] and traj.info['n_tests'])
rewards, values = outcome_rewards(batch['reward'], mask), batch_values(make_base_critic(tok, n=80), batch)
inputs = rewards, values, mask, turn_ids
kept, starts = mask[row].nonzero()[:, 0], call_starts(mask, turn_ids)[row].nonzero()[:, 0]
columns = {'value': values, 'surprise': turn_advantages(*inputs, 1.0, 0.0)[0],
           'advantage': turn_advantages(*inputs, 1.0, 0.95)[0]}
calls = tok.decode(trajs[row].ids[1:][kept].tolist()).replace('<call> ', '').split(' </call>')[:len(starts)]
pd.DataFrame({name: x[row, starts] for name, x in columns.items()}, index=[c.strip() for c in calls]).round(3)

# %% [markdown]
# Now token by token, with the surprise and the advantage of 7.1 beside the call's.

# %%
columns = {'value': values, 'surprise': gae_advantages(*inputs[:3], 1.0, 0.0)[0],
           'token level': gae_advantages(*inputs[:3], 1.0, 0.95)[0],
           'turn level': turn_advantages(*inputs, 1.0, 0.95)[0]}
tokens = [tok.itos[i] for i in trajs[row].ids[1:][kept].tolist()]
pd.DataFrame({name: x[row, kept] for name, x in columns.items()}, index=tokens).round(3)

# %% [markdown]
# Three things to see. With γ = 1 the surprises of a call's tokens add up to the surprise of the call: 0.309
# for `read`, most of it when the tool is named. Token level says *which* token surprised, and a critic that
# errs inside a call errs there too: it took the right edit for a mistake, and its tokens have advantages
# from 0.185 to 0.427. Turn level asks only at the starts, gives all four 0.475, and fades the verdict over
# two calls on its way to them, not over six to nine tokens.

# %%
by_token, by_call = columns['surprise'], turn_advantages(*inputs, 1.0, 0.0)[0]
added = [by_token[b][mask[b] & (turn_ids[b] == turn_ids[b, t])].sum() - by_call[b, t]
         for b, t in call_starts(mask, turn_ids).nonzero().tolist()]
print('calls:', len(added), ' surprises of tokens add up:', bool(torch.stack(added).abs().max() < 1e-12))

# %% [markdown]
# ## What was seen
#
# One call as one step is a regrouping: sum, ask at the start, hand back. Undiscounted with λ = 1 it is what
# was earned from the call on minus the value of its start; with calls of one token it is token-level GAE to
# the last bit. The calls of the RL base have 3.31 tokens, so λ = 0.95 a token is 0.844 a call and reaches
# about 6 calls, not 20: a surprise five calls later counts 0.428 in place of 0.774. Which of the two learns
# better is the question of 12.2.
#
# **Try it.** Let the episode's table use λ = 1 at both levels: what is left of the difference? Then give
# the critic's values inside the calls another sign (`values * -1` where `call_starts` is false): which of
# the two notices?
