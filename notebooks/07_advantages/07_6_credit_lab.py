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
# # 7.6 Judge the methods of credit against the truth
#
# Every method of this chapter puts a number on a call: how much better was it than what the policy would do
# on average in that state? In a real project nobody knows the right answer, so methods are judged by the
# training curves at the end. Here we can know. The environment can be copied, so the advantage of every
# call of real episodes can be measured to within a few hundredths, and each method can be asked for its
# opinion of the same call again and again. We will see which methods are noisy, which are biased, which of
# the biases matter, what each costs, and why it is so hard to unlearn a useless `test`.
#
# **Time** 35 min. **Assumes** [7.1](07_1_returns_and_gae.ipynb) to [7.5](07_5_continuations.ipynb).
# **Afterwards you can** separate noise from bias in an estimate of credit, and say which part of the bias
# training follows.

# %%
#@save credit_lab
import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from unittest.mock import patch

import joblib
import pandas as pd
import torch
import torch.nn.functional as F
from tqdm import tqdm

from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.continuations import continue_episodes, snapshots
from agentrl.credit import gae_advantages, outcome_rewards, returns_to_go
from agentrl.critic import base_episodes, batch_values, fit_critic, make_base_critic, make_critic
from agentrl.environment import EditBudgetEnv, parse_call, passes
from agentrl.episodes import collate, make_trajectory, take_rows
from agentrl.model import sequence_log_probs
from agentrl.plotting import figures_dir
from agentrl.sampling import rollout_batch
from agentrl.step_groups import call_texts, visited_states
from agentrl.tasks import make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.turns import turn_advantages
from agentrl.versions import code_version

# %% [markdown]
# ## The plan
#
# The policy is the RL base, the start of all training in this book. From each of the 20 train tasks we take
# 64 episodes, and measure every call of the first three. Before each call, and after the last, there is a
# snapshot (7.5), from which 1096 continuations are played: 1024 for the truth, and 72 others that serve as
# *replays*. A replay of a call is an episode that shares everything up to and including that call and then
# ends as it happens to. It is what training could have seen, instead of the one ending that it saw.

# %%
#@save
@dataclass(frozen=True)
class LabConfig:
    """The size of the lab; everything in it is drawn from `seed`."""
    group: int = 64                                                     # episodes of each train task
    whole: int = 3                                                      # of these, every call is measured
    truth: int = 1024                                                   # continuations from each snapshot
    replays: int = 72                                                   # and those that methods are shown
    siblings: int = 7                                                   # of an episode, in its group of 8
    seed: int = 0

    def __post_init__(self):
        if self.replays % 72:
            raise ValueError(f'replays={self.replays}; allowed: multiples of 72, halves of fours and nines')


@dataclass
class LabEpisode:
    """An episode of the RL base: trajectory and snapshots; text of each call and key of the state before."""
    traj: object
    cuts: list
    texts: list
    keys: list


# %%
#@save
@lru_cache(maxsize=1)
def lab_policy():
    """(tokenizer, RL base)."""
    tok = build_tokenizer(make_tasks('all'))
    return tok, make_rl_base(tok)


def lab_rng(cfg, *what):
    """A generator of its own for everything that is drawn: no result depends on what else is measured."""
    digest = hashlib.sha256(repr((cfg.seed, *what)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


@lru_cache(maxsize=4)
def lab_group(n, cfg=LabConfig()):
    """Episodes of the RL base on train task n, fresh names for each: list of LabEpisode."""
    (tok, policy), task, rng = lab_policy(), make_tasks('train')[n], lab_rng(cfg, 'group', n)
    tasks = [randomize_names(task, rng) for _ in range(cfg.group)]
    trajs = rollout_batch(policy, [EditBudgetEnv() for _ in tasks], tasks, tok, 6, 1.0, rng)
    return [LabEpisode(traj, snapshots(traj, EditBudgetEnv(), named, 6), call_texts(traj),
                       visited_states(EditBudgetEnv(), named, call_texts(traj), 6))
            for traj, named in zip(trajs, tasks)]


# %% [markdown]
# Calls are of seven kinds. Whether an edit is right is known to us, if not to the policy; and an edit after
# the first is refused. Beside the kind we note whether the source is repaired at that moment: to submit it
# then is another deed than to submit it broken.

# %%
#@save
CALL_KINDS = ('read', 'test', 'right edit', 'wrong edit', 'refused edit', 'submit', 'malformed')


def call_kind(env, text):
    """(which of CALL_KINDS a call is, made in `env` as it stands; whether the source is repaired by then)."""
    tool, op = parse_call(text)
    if tool == 'edit':
        tool = 'right edit' if op == env.task.edit else 'wrong edit'
        tool = tool if env.info['n_edits'] < env.max_edits else 'refused edit'
    return 'malformed' if tool == 'invalid' else tool, passes(env, 'hidden')


# %%
group = lab_group(0)
episode = next(episode for episode in group if 'read' in episode.texts[0] and len(episode.texts) > 3)
for cut, text in zip(episode.cuts, episode.texts):
    print(f'{text[7:-8]:20}', call_kind(cut.env, text))

# %% [markdown]
# ## The truth
#
# The policy does not know what calls cost, so the same continuations tell the value for any cost c: the
# verdict minus c for each call that was still made. We use c = 0 and, as in 12.2, c = 0.05. The advantage is
#
# $$A_k = r_k + V(s_{k+1}) - V(s_k),$$
#
# with both values from continuations of their own, so the squares of their standard errors add up.

# %%
#@save
def returns_from(j, finished, cost):
    """What was earned from call j on: [N], of finished Episodes or Trajectories; a call costs `cost`."""
    verdict, calls = (torch.tensor([float(episode.info[name]) for episode in finished], dtype=torch.float64)
                      for name in ('hidden_pass', 'n_turns'))
    return verdict * (calls > j) - cost * (calls - j)


def true_advantage(k, earned, before, after, cost):
    """(A, its standard error) of call k that earned `earned`; played on from before and from after it."""
    v, w = returns_from(k, before, cost), returns_from(k + 1, after, cost)
    return (earned + w.mean() - v.mean()).item(), (v.var() / len(v) + w.var() / len(w)).sqrt().item()


# %% [markdown]
# Of this episode, with 200 continuations from each snapshot. The cost moves the advantage of a call by less
# than 0.05 or by more: what counts is how many calls the policy would have made without it.

# %%
ends, rows = continue_episodes(lab_policy()[1], episode.cuts, 200, lab_rng(LabConfig(), 'demo')), {}
for cost in (0.0, 0.05):
    earned = [0.0 - cost] * (len(episode.texts) - 1) + [episode.traj.reward - cost]
    found = [true_advantage(k, earned[k], ends[k], ends[k + 1], cost) for k in range(len(episode.texts))]
    rows |= {(f'cost {cost}', 'A'): [a for a, _ in found], (f'cost {cost}', 'error'): [e for _, e in found]}
pd.DataFrame(rows, index=[text[7:-8] for text in episode.texts]).round(3)

# %% [markdown]
# ## What the methods say: groups
#
# The outcome method (9.1) subtracts from an episode's return the mean of its group of eight, itself
# included. Step groups (7.4) subtract from the return-to-go of a call the mean over those that passed
# through the same state. Neither is divided by a deviation here, so that all numbers are in units of
# reward. Seven siblings are drawn anew for each replay.

# %%
#@save
def minus_group_mean(mine, theirs):
    """mine [R] minus the mean of mine and those of theirs [R, siblings] that are not NaN: [R]."""
    present = ~theirs.isnan()
    return mine - (mine + theirs.nansum(1)) / (1 + present.sum(1))


def group_estimates(group, m, i, replayed, cost, cfg, rng):
    """Advantages of call i of episode m in each replay, siblings drawn anew: {method: [R]}."""
    others = [episode for n, episode in enumerate(group) if n != m]
    trajs, absent = [other.traj for other in others], [group[m].keys[i] not in other.keys for other in others]
    picks = torch.rand(len(replayed), len(others), generator=rng).argsort(1)[:, :cfg.siblings]
    same_state = returns_from(i, trajs, cost).masked_fill(torch.tensor(absent), float('nan'))
    outcome = minus_group_mean(returns_from(0, replayed, cost), returns_from(0, trajs, cost)[picks])
    step = minus_group_mean(returns_from(i, replayed, cost), same_state[picks])
    return {'outcome': outcome, 'step groups': step, 'outcome + step': outcome + step}


# %% [markdown]
# ## What the methods say: critics
#
# For GAE (7.1, 7.3) the cost of a call is charged at its last token. The critics are fitted to episodes of
# the RL base, as many as 12.2 uses (480), once for each cost; a better one saw 1600. They are asked on the
# replays. A token-level method has a number for each token; we take the mean over the tokens of a call.

# %%
#@save
def cost_rewards(batch, cost):
    """Rewards [B, T-1]: the verdict at the last kept token, minus `cost` at the last token of each call."""
    mask, turn = batch['action_mask'], batch['turn'][:, 1:]
    goes_on = F.pad(mask[:, 1:] & (turn[:, 1:] == turn[:, :-1]), (0, 1))                      # [B, T-1]
    return outcome_rewards(batch['reward'], mask) - cost * (mask & ~goes_on)


@cached
def lab_critic_weights(vocabulary, cost, n, steps, seed=0):
    """Weights of a critic of the RL base where calls cost `cost`, fitted to n episodes of each train task."""
    (tok, policy), rng = lab_policy(), torch.Generator().manual_seed(seed)
    batch = collate(base_episodes(policy, tok, 'train', n, rng)[0], tok.pad_id)
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)
    fit_critic(critic, opt, batch, returns_to_go(cost_rewards(batch, cost), batch['action_mask']), steps, rng)
    return critic.state_dict()


@lru_cache(maxsize=4)
def lab_critic(cost, n=24, steps=60):
    """That critic; without a cost it is the one of 7.2, made by the same recipe."""
    tok, policy = lab_policy()
    if cost == 0:
        return make_base_critic(tok, n, steps)
    critic = make_critic(policy)
    critic.load_state_dict(lab_critic_weights(tok.itos, cost, n, steps))
    return critic


# %% [markdown]
# Many replays are the same episode, token for token, and need to be read only once.

# %%
#@save
def call_means(tokens, batch):
    """Mean over the kept tokens of each call: [B, T-1] -> [B, K], NaN where an episode has no such call."""
    mask, turn = batch['action_mask'], batch['turn'][:, 1:].clamp(min=0)
    sums, counts = (x.new_zeros(len(x), int(turn.max()) + 1).scatter_add(1, turn, x * mask)
                    for x in (tokens, torch.ones_like(tokens)))
    return sums / counts


def distinct_values(critic, batch):
    """batch_values, computed once for rows that are equal (replays often are)."""
    distinct, place = torch.unique(batch['ids'], dim=0, return_inverse=True)
    number = torch.arange(len(place))
    first = torch.full((len(distinct),), len(place)).scatter_reduce(0, place, number, 'amin')
    return batch_values(critic, take_rows(batch, first))[place]


def critic_estimates(replays, cost):
    """Advantages of all calls by methods with a critic, of {cut: trajectories}: {cut: {method: [R, K]}}."""
    batch = collate([traj for trajs in replays.values() for traj in trajs], lab_policy()[0].pad_id)
    rewards, mask, turn = cost_rewards(batch, cost), batch['action_mask'], batch['turn'][:, 1:]
    values, better = (distinct_values(lab_critic(cost, n), batch) for n in (24, 80))
    tokens = {'token GAE 0.95': gae_advantages(rewards, values, mask, 1.0, 0.95)}
    for lam in (0.9, 0.95, 1.0):
        tokens[f'turn GAE {lam:g}'] = turn_advantages(rewards, values, mask, turn, 1.0, lam)
    tokens['turn GAE 0.95, better critic'] = turn_advantages(rewards, better, mask, turn, 1.0, 0.95)
    calls = {name: call_means(advantages, batch) for name, (advantages, _) in tokens.items()}
    parts = zip(*(x.chunk(len(replays)) for x in calls.values()))
    return {j: dict(zip(calls, part)) for j, part in zip(replays, parts)}


# %% [markdown]
# By hand: a return of 1 in a group with 0, 0 and an absent sibling has $1 - 1/3$. Two calls at a cost of
# 0.1 and a verdict of 1 have rewards −0.1 and 0.9, at their last tokens. And tokens 1, 2 and 3, 4, 8 have
# means 1.5 and 5.

# %%
print(minus_group_mean(torch.tensor([1.0]), torch.tensor([[0.0, 0.0, float('nan')]])).round(decimals=4))
mask = torch.tensor([[1, 1, 0, 1, 1, 1]], dtype=torch.bool)
batch = {'action_mask': mask, 'turn': torch.tensor([[-1, 0, 0, 0, 1, 1, 1]]), 'reward': torch.tensor([1.0])}
print(cost_rewards(batch, 0.1), call_means(torch.tensor([[1.0, 2.0, 9.0, 3.0, 4.0, 8.0]]), batch), sep='\n')

# %% [markdown]
# ## What the methods say: continuations
#
# VinePPO (7.5) plays on m times from before the call and m times from after it. With 72 replays on each side
# there are 18 such estimates with m = 4, and 8 with m = 9.

# %%
#@save
def continuation_estimates(earned, before, after):
    """Advantages by m continuations before and m after a call: {method: [R / m]}, of returns [R] of each."""
    return {f'MC {m}': earned + after.reshape(-1, m).mean(1) - before.reshape(-1, m).mean(1) for m in (4, 9)}


LAB_COSTS = (0.0, 0.05)                                                     # of a call


def play_on(n, m, j, cfg):
    """From cut j of episode m of train task n: (Episodes for the truth, Trajectories to be judged)."""
    cut, rng = lab_group(n, cfg)[m].cuts[j], lab_rng(cfg, 'play on', n, m, j)
    ends = continue_episodes(lab_policy()[1], [cut], cfg.truth + cfg.replays, rng)[0]
    return ends[:cfg.truth], [make_trajectory(end) for end in ends[cfg.truth:]]


# %% [markdown]
# ## Bias that matters and bias that does not
#
# A method's advantage $\hat A$ of a call is a random number: how the episode ended and who the siblings
# were was chance. Its mean over replays of the same call, minus the truth, is its bias. But consider
# *fresh* calls: replays from the snapshot before, in which the policy chooses again. There the true
# advantage is 0 on average, by definition. What the method says there on average it says about any call in
# this state, and with the score function in front of it this adds nothing to the expected gradient (6.1: a
# baseline may depend on the state). So we split
#
# $$\underbrace{\mathbb E[\hat A \mid s, a] - A(s, a)}_{\text{bias}} \;=\;
#   \underbrace{\mathbb E[\hat A \mid s]}_{\text{offset}} \;+\;
#   \underbrace{\mathbb E[\hat A \mid s, a] - \mathbb E[\hat A \mid s] - A(s, a)}_{\text{tilt}} .$$
#
# The offset is noise at worst. The tilt differs from call to call, and training follows it.

# %%
#@save
def judge_call(n, m, k, cost, earned, replays, by_critic, cfg):
    """(method, advantages of call k, of whichever call is made in its place), over the replays."""
    given, fresh = ({name: calls[:, k] for name, calls in by_critic[j].items()} for j in (k + 1, k))
    for j, estimates in ((k + 1, given), (k, fresh)):
        rng = lab_rng(cfg, 'siblings', n, m, k)                         # the same siblings for both
        estimates |= group_estimates(lab_group(n, cfg), m, k, replays[j], cost, cfg, rng)
    given |= continuation_estimates(earned, *(returns_from(j, replays[j], cost) for j in (k, k + 1)))
    nothing = torch.zeros(2, dtype=torch.float64)                       # exact: the mean of A over calls is 0
    return [(name, given[name], fresh.get(name, nothing)) for name in given]


def summarize_estimates(given, fresh):
    """What is kept of advantages of a call [N] and of fresh ones [M]: means of both halves, and more."""
    halves = {f'{name}_{half}': part.mean().item() for name, x in (('mean', given), ('fresh', fresh))
              for half, part in enumerate(x.chunk(2), start=1)}
    up, down = ((sign * given > 1e-9).double().mean().item() for sign in (1, -1))
    return halves | {'var': given.var().item(), 'draw': given[0].item(), 'up': up, 'down': down}


# %%
#@save
def call_probability(state, text):
    """Probability that the policy makes the call `text` in a snapshot."""
    ids = state.tok.encode(text)
    with torch.no_grad():
        logp = sequence_log_probs(lab_policy()[1], torch.tensor([state.ids + ids]))[0]        # [T-1]
    return logp[-len(ids):].sum().exp().item()


def describe_call(episode, k, cost):
    """What is known of call k: kind, probability (and that of submitting), what came before, its reward."""
    state, text = episode.cuts[k], episode.texts[k]
    kind, repaired = call_kind(state.env, text)
    earned = (episode.traj.reward if k + 1 == len(episode.texts) else 0.0) - cost
    return {'call': k, 'kind': kind, 'repaired': repaired, 'reads': state.env.info['n_reads'],
            'edits': state.env.info['n_edits'], 'prob': call_probability(state, text),
            'submit_prob': call_probability(state, '<call> submit </call>'), 'cost': cost, 'earned': earned}


def measure_calls(n, m, calls, cfg=LabConfig()):
    """Truth and every method's advantages of these calls of episode m of train task n: list of rows."""
    episode, rows = lab_group(n, cfg)[m], []
    played = {j: play_on(n, m, j, cfg) for j in sorted({j for k in calls for j in (k, k + 1)})}
    truth, replays = ({j: pair[part] for j, pair in played.items()} for part in (0, 1))
    for cost in LAB_COSTS:
        by_critic = critic_estimates(replays, cost)
        for k in calls:
            known = {'task': n, 'episode': m} | describe_call(episode, k, cost)
            known['truth'], known['error'] = true_advantage(k, known['earned'], truth[k], truth[k + 1], cost)
            known['value'] = returns_from(k, truth[k], cost).mean().item()
            known['left'] = sum(end.info['n_turns'] - k for end in truth[k]) / cfg.truth
            judged = judge_call(n, m, k, cost, known['earned'], replays, by_critic, cfg)
            rows += [known | {'method': name} | summarize_estimates(*pair) for name, *pair in judged]
    return rows


# %% [markdown]
# One call, as all methods see it: the first call of the first episode, at cost 0.05. *Follows* is the mean
# without the offset, what training would follow on average if it had these replays; the truth comes from
# others.

# %%
rows = pd.DataFrame(measure_calls(0, 0, [0], LabConfig(truth=256)))
rows['mean'], rows['offset'] = (rows[f'{name}_1'] / 2 + rows[f'{name}_2'] / 2 for name in ('mean', 'fresh'))
seen = rows[rows['cost'] == 0.05].set_index('method')
print(f'{group[0].texts[0]}: A = {seen["truth"].iloc[0]:.3f}, standard error {seen["error"].iloc[0]:.3f}')
pd.DataFrame({'mean': seen['mean'], 'offset': seen['offset'], 'follows': seen['mean'] - seen['offset'],
              'deviation': seen['var'] ** 0.5}).round(3)

# %% [markdown]
# ## All calls
#
# The whole lab plays some 270 thousand continuations, six minutes of work, so its table is stored in
# `figures/data/credit_lab.csv`, under the version of the code that made it; other code makes it again.
# Malformed calls are rare, so the first one among the other 61 episodes of each task is measured too, and
# counted only where kinds are looked at one by one.

# %%
#@save
def lab_calls(n, cfg=LabConfig()):
    """[(episode, calls)] to measure: all of some episodes, and the first malformed call of the others."""
    group = lab_group(n, cfg)
    chosen = [(m, list(range(len(group[m].texts)))) for m in range(cfg.whole)]
    malformed = [(m, [k]) for m in range(cfg.whole, cfg.group) for k, text in enumerate(group[m].texts)
                 if parse_call(text)[0] == 'invalid']
    return chosen + malformed[:1]


def lab_task(n, cfg=LabConfig()):
    """All rows of train task n; `whole` says whether every call of the row's episode was measured."""
    torch.set_num_threads(1)
    return [row | {'whole': m < cfg.whole} for m, calls in lab_calls(n, cfg)
            for row in measure_calls(n, m, calls, cfg)]


def lab_path():
    """Where the lab's results are stored."""
    return figures_dir() / 'data' / 'credit_lab.csv'


# %%
#@save
def lab_results(jobs=2):
    """The lab's table, a row for each call, cost and method; measured again if other code made it (6 min)."""
    path, version = lab_path(), code_version(lab_task)
    stored = pd.read_csv(path) if path.exists() else pd.DataFrame({'version': []})
    if set(stored['version']) == {version}:
        return stored.drop(columns='version')
    n_tasks = len(make_tasks('train'))
    with patch.dict(os.environ, TQDM_DISABLE='1'):                      # one bar for all, none from workers
        work = joblib.Parallel(n_jobs=jobs, return_as='generator')(
            joblib.delayed(lab_task)(n) for n in range(n_tasks))
        rows = [row for rows in tqdm(work, desc='credit lab', total=n_tasks) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.part')
    table = pd.DataFrame(rows).assign(version=version)
    table.to_csv(part, index=False, float_format='%.5g', lineterminator='\n')
    os.replace(part, path)
    return lab_results()


# %%
import numpy as np

lab = lab_results()
lab['clear'] = lab['truth'].abs() > np.maximum(2 * lab['error'], 1e-9)
whole, calls = lab[lab['whole']], lab[lab['method'] == 'outcome']
print(len(whole.groupby(['task', 'episode'])), 'episodes,', len(calls[calls['whole']]) // 2, 'calls, and',
      len(calls[~calls['whole']]) // 2, 'malformed ones more')
calls = calls[calls['whole']].assign(positive=lambda c: c['clear'] & (c['truth'] > 0))
columns = {'truth': 'size', 'clear': 'sum', 'positive': 'sum', 'error': ['mean', 'max']}
calls.groupby('cost').agg(columns).round(4)

# %% [markdown]
# Is the table really what this code gives? The first call of an episode with two calls, measured again with
# all of its continuations:

# %%
n, m = whole.groupby(['task', 'episode'])['call'].max().loc[lambda last: last == 1].index[0]
again = pd.DataFrame(measure_calls(int(n), int(m), [0]))
stored = lab[(lab['task'] == n) & (lab['episode'] == m) & (lab['call'] == 0)].reset_index(drop=True)
numbers, texts = again.select_dtypes('number').columns, ['method', 'kind', 'repaired']
same = ((again[numbers] - stored[numbers]).abs() <= 1e-4 * again[numbers].abs() + 1e-9).all(axis=None)
print(f'task {n}, episode {m}: {len(again)} rows, {len(numbers)} numbers in each')
print('equal to five digits:', same, 'and in words:', again[texts].equals(stored[texts]))

# %% [markdown]
# ## Scores
#
# For each method and cost, over all calls of the 60 episodes:
#
# - *sign right*, *sign wrong*: how often a single estimate has the sign of the truth or the other one,
#   over the calls whose truth is clear (more than two standard errors from 0). The rest are estimates of
#   exactly 0.
# - *rank*: Spearman's rank correlation between one estimate of each call and the truth.
# - *bias*, *offset*, *tilt*: roots of mean squares. A mean square of noisy numbers is too large by their
#   variance, so we never square: we multiply the means of the two halves of the replays, which have no
#   noise in common. For the tilt, the truth is what MC says on the same half, for the same reason: chance
#   that is in both cancels. (MC itself, unbiased by 7.5, and turn GAE with λ = 1 then have a tilt of 0 by
#   definition; that MC is right is seen in its bias, which is taken against the independent truth.)
# - *noise*: the root of the mean variance over replays of one call.

# %%
exact = lab[lab['method'] == 'MC 9'].set_index(['task', 'episode', 'call', 'cost'])
for half in ('1', '2'):
    same_half = exact[f'mean_{half}'].reindex(pd.MultiIndex.from_frame(lab[exact.index.names])).to_numpy()
    lab[f'bias_{half}'] = lab[f'mean_{half}'] - lab['truth']
    lab[f'tilt_{half}'] = lab[f'mean_{half}'] - lab[f'fresh_{half}'] - same_half
lab['follows'] = (lab['mean_1'] + lab['mean_2'] - lab['fresh_1'] - lab['fresh_2']) / 2


def score_parts(rows):
    """What the scores are made of, for each call."""
    positive = rows['truth'] > 0
    return pd.DataFrame({
        'n': 1.0, 'clear': 1.0 * rows['clear'],
        'right': rows['clear'] * rows['up'].where(positive, rows['down']),
        'wrong': rows['clear'] * rows['down'].where(positive, rows['up']),
        'bias': rows['bias_1'] * rows['bias_2'] - rows['error'] ** 2,
        'offset': rows['fresh_1'] * rows['fresh_2'], 'tilt': rows['tilt_1'] * rows['tilt_2'],
        'noise': rows['var']})


def scores(parts):
    """parts [..., 8], summed over calls -> sign right, sign wrong, bias, offset, tilt, noise."""
    n, clear, right, wrong, *squares = np.moveaxis(parts, -1, 0)
    roots = [np.sqrt(np.maximum(square, 0) / n) for square in squares]
    return np.stack([right / clear, wrong / clear, *roots])


# %% [markdown]
# Intervals are for other episodes: the bootstrap of SciPy draws whole episodes again, since the calls of one
# episode are not independent.

# %%
from scipy.stats import bootstrap, rankdata

SCORES = ['sign right', 'sign wrong', 'bias', 'offset', 'tilt', 'noise', 'rank']


def rank_correlation(x, y):
    return np.corrcoef(rankdata(x), rankdata(y))[0, 1] if np.ptp(x) > 0 else 0.0


def with_intervals(rows, draws=300):
    """{score: (value, low, high)} of one method, with 95% intervals over episodes."""
    episode = rows.groupby(['task', 'episode']).ngroup().to_numpy()
    parts = score_parts(rows).groupby(episode).sum().to_numpy()                               # [E, 8]
    members = [np.flatnonzero(episode == e) for e in range(len(parts))]
    pairs = rows[['draw', 'truth']].to_numpy()

    def all_scores(picks, axis):
        ranks = [rank_correlation(*pairs[np.concatenate([members[e] for e in some])].T)
                 for some in picks.reshape(-1, len(parts))]
        return np.concatenate([scores(parts[picks].sum(-2)), np.reshape(ranks, (1, *picks.shape[:-1]))])

    every = np.arange(len(parts))
    interval = bootstrap((every,), all_scores, n_resamples=draws, vectorized=True, method='percentile',
                         rng=np.random.default_rng(0)).confidence_interval
    return dict(zip(SCORES, zip(all_scores(every, -1), interval.low, interval.high)))


# %%
from agentrl.plotting import save_table

whole = lab[lab['whole']]
blank = dict.fromkeys(['var', 'draw', 'up', 'down', 'fresh_1', 'fresh_2'], 0.0)
nothing = whole[whole['method'] == 'MC 9'].assign(method='always 0', **blank)
for half in ('1', '2'):
    nothing[f'bias_{half}'], nothing[f'tilt_{half}'] = -nothing['truth'], -nothing[f'mean_{half}']
methods = ['outcome', 'step groups', 'outcome + step', 'token GAE 0.95', 'turn GAE 0.9', 'turn GAE 0.95',
           'turn GAE 1', 'turn GAE 0.95, better critic', 'MC 4', 'MC 9', 'always 0']
found = {key: with_intervals(rows) for key, rows in pd.concat([whole, nothing]).groupby(['cost', 'method'])}
scored = pd.DataFrame([(cost, method, score, *found[cost, method][score]) for cost in LAB_COSTS
                       for method in methods for score in SCORES],
                      columns=['cost', 'method', 'score', 'value', 'low', 'high'])
save_table(scored, '07_6_scores')
scored['shown'] = [f'{row.value:.2f} ({row.low:.2f} to {row.high:.2f})' for row in scored.itertuples()]
better = whole[(whole['cost'] == 0.05) & whole['clear'] & (whole['truth'] > 0)].groupby('method')['down']
print('clearly better than average, but called worse:',
      better.mean()[['outcome', 'turn GAE 0.95', 'MC 9']].round(2).to_dict())
wide = scored.pivot(index=['cost', 'method'], columns='score', values='shown').rename_axis(columns=None)
wide.reindex(methods, level='method')[['sign right', 'sign wrong', 'rank', 'bias', 'tilt', 'noise']]

# %% [markdown]
# Read the bias column first, and all methods but MC and step groups look worse than saying 0 everywhere, or
# little better. The tilt column says that nearly all of their bias is offset, the same for every call that
# could have been made in the state. What is left of the outcome method is an eighth of the truth: the
# group's mean contains the episode itself. λ below 1 costs turn GAE a little and token GAE, which fades
# over three times as many steps, more. Step groups have half the truth's own size as their tilt: they are
# silent about all calls without company. (With the outcome added they count first calls twice, which is a
# tilt by our definition too.) A better critic lowers the bias, not the noise.
#
# The signs tell the same story as the ranks. Continuations are seldom wrong; where they are not right they
# mostly say exactly 0, because all of them ended alike. The other methods always have an opinion, since the
# verdict of the episode colours all of its calls, and it is wrong more often; where calls cost something, the
# outcome calls 0.38 of the calls that are truly better than average worse, and turn GAE 0.53 (first line).
#
# ## What an environment step buys
#
# Noise can be averaged away with more episodes, and so can the offset. So compare at equal cost: if a method
# needs f times the steps of an episode, the others could have had f episodes instead of one, and their jitter
# (noise and offset together) would be $\sqrt f$ times smaller. The episodes that a critic is fitted to are
# paid once and not counted.

# %%
free = whole[(whole['cost'] == 0) & (whole['method'] == 'outcome')].groupby(['task', 'episode'])
own, left, rows = free.size().mean(), free['left'].sum().mean(), []
for method in methods[:-1]:
    score = {name: value for name, (value, _, _) in found[0.05, method].items()}
    steps = own + left * int(method[3:]) if method.startswith('MC') else own
    jitter = (score['offset'] ** 2 + score['noise'] ** 2) ** 0.5
    rows.append([method, steps, steps / own, jitter, jitter * (steps / own) ** 0.5, score['tilt']])
columns = ['method', 'steps an episode', 'times', 'jitter', 'jitter at equal steps', 'tilt']
pd.DataFrame(rows, columns=columns).set_index('method').round({'steps an episode': 1, 'times': 1}).round(3)

# %% [markdown]
# ## One kind of call at a time
#
# Now the same calls by kind, at cost 0.05. The black line is the mean truth of the kind. For each method the
# dot is its mean estimate, and the bar one standard deviation of a single estimate to both sides. The ring is
# the mean estimate after the offset has been taken off: what training follows on average.

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import SPARE_COLORS, arm_color, save_figure, use_style

COLORS = {'MC 9': SPARE_COLORS[0], 'turn GAE 0.95': arm_color('turn GAE'),
          'token GAE 0.95': arm_color('token GAE'), 'step groups': SPARE_COLORS[1],
          'outcome': arm_color('outcome (GRPO)')}
PANELS = ['read', 'right edit', 'submit repaired', 'test',
          'wrong edit', 'submit broken', 'refused edit', 'malformed']


def draw_kind(ax, rows):
    ax.axvline(rows['truth'].iloc[0], color='black', linewidth=1)
    for place, (method, color) in enumerate(COLORS.items()):
        row = rows.loc[method]
        ends = [row['estimate'] - row['deviation'], row['estimate'] + row['deviation']]
        ax.plot(ends, [place, place], color=color, linewidth=5, alpha=0.35, solid_capstyle='butt')
        ax.plot(row['estimate'], place, 'o', color=color, markersize=5)
        ax.plot(row['follows'], place, 'o', color=color, markersize=9, fillstyle='none', markeredgewidth=1.5)
    ax.set(yticks=range(len(COLORS)), yticklabels=COLORS, ylim=(-0.6, len(COLORS) - 0.3))


# %%
state = np.where(lab['repaired'], ' repaired', ' broken')
lab['panel'] = lab['kind'] + np.where(lab['kind'] == 'submit', state, '')
lab['estimate'] = (lab['mean_1'] + lab['mean_2']) / 2
by_kind = lab.groupby(['cost', 'panel', 'method']).agg(
    calls=('truth', 'size'), truth=('truth', 'mean'), estimate=('estimate', 'mean'),
    follows=('follows', 'mean'), deviation=('var', lambda var: var.mean() ** 0.5)).reset_index()
use_style()
fig, axes = plt.subplots(2, 4, figsize=(11, 5.2), sharex=True, sharey=True)
for ax, panel in zip(axes.flat, PANELS):
    rows = by_kind[(by_kind['cost'] == 0.05) & (by_kind['panel'] == panel)].set_index('method')
    draw_kind(ax, rows)
    ax.set_title(f'{panel} ({rows["calls"].iloc[0]} calls)')
for ax in axes[-1]:
    ax.set_xlabel('advantage (units of reward)')
example = by_kind.set_index(['cost', 'panel', 'method']).loc[(0.05, 'submit repaired', 'outcome')]
for column, name, side in (('estimate', 'it says', 'center'), ('follows', 'training follows', 'right')):
    axes[0, 2].text(example[column], len(COLORS) - 0.75, name, ha=side, va='bottom', fontsize='small')
fig.suptitle('Five methods on eight kinds of call at cost 0.05 '
             '(line: the truth; bar: one deviation of an estimate)')
save_figure(fig, '07_6_credit_lab', by_kind)

# %%
shown = by_kind[by_kind['method'].isin(COLORS)].set_index(['cost', 'panel'])
table = shown.pivot(columns='method', values='follows')[list(COLORS)[::-1]].rename_axis(columns=None)
for column in ('truth', 'calls'):
    table.insert(0, column, shown.loc[shown['method'] == 'MC 9', column])
table.reindex(PANELS, level='panel').round(3)

# %% [markdown]
# The rings of outcome, turn GAE and MC lie on the line or near it, whatever the dots say. `submit repaired`
# shows best what an offset is: outcome and GAE praise the submission of a repaired function for the whole
# episode, although anything else would have been strange there. Step groups hardly say a word about it,
# since nobody else stood in that state; token GAE finds only part of what `read` is worth, which shows
# several tokens later.

# %% [markdown]
# ## Why `test` is so hard to unlearn
#
# `test` tells this agent nothing that it uses. So it looks like a call that should go as soon as calls cost
# something. Here are the situations in which the RL base tests: how probable `test` is there and what it is
# truly worth; and the same for `submit` in its place, whose advantage is the verdict minus the cost minus the
# value of the state.

# %%
tests, kinds = lab[lab['kind'] == 'test'].copy(), lab.drop_duplicates(['task', 'episode', 'call'])
kinds = kinds.set_index(['task', 'episode', 'call'])['kind']
before = [kinds.get((n, m, k - 1), '') for n, m, k in zip(tests['task'], tests['episode'], tests['call'])]
tests['situation'] = np.select(
    [tests['edits'] == 0, ~tests['repaired'], (tests['reads'] > 0) & (np.array(before) == 'right edit')],
    ['nothing edited yet', 'after a wrong edit', 'code read, right edit just made'], 'repaired otherwise')
tests['submit'] = tests['repaired'] - tests['cost'] - tests['value']
one = tests[tests['method'] == 'outcome'].groupby(['cost', 'situation'])
pd.DataFrame({'tests': one.size(), 'P(test)': one['prob'].mean(), 'A(test)': one['truth'].mean(),
              'error': one['error'].agg(lambda e: (e ** 2).sum() ** 0.5 / len(e)),
              'P(submit)': one['submit_prob'].mean(), 'A(submit)': one['submit'].mean()}).round(3)

# %% [markdown]
# Before an edit, and long after one or without having read, `test` is worse than what the policy does
# otherwise, even where calls are free: it is the mark of an episode that dithers and will not submit in
# time. After a wrong edit all is lost, and it costs a part of its price. But in the one situation that a
# trained agent will be in, code read and right edit just made, its true advantage is *positive*, also at a
# cost of 0.05. An advantage compares a call with what this policy would do otherwise. It would hardly ever
# submit there; the alternatives to `test` are calls that lose the thread. To submit at once would be
# better, and is tried in one of two hundred cases. So even perfect credit first makes the habit stronger.
#
# What do the methods see of all this, at cost 0.05? *Tests needed* is how many of them an average must be
# taken over until it is twice its standard error from 0: $(2 \cdot \text{jitter} / A)^2$; the last column
# says how many a training step of 64 episodes of this policy holds.

# %%
def visible(rows):
    of = {method: its for method, its in rows.groupby('method')}
    A, n = of['outcome']['truth'].mean(), len(of['outcome'])
    follows = {name: of[name]['follows'].mean() for name in list(COLORS)[::-1]}
    jitter = {name: (of[name]['var'] + of[name]['fresh_1'] * of[name]['fresh_2']).mean() ** 0.5
              for name in ('outcome', 'turn GAE 0.95')}
    needed = {f'needed by {name}': (2 * size / A) ** 2 for name, size in jitter.items()}
    return pd.Series({'A(test)': A} | follows | needed | {'in a step': 64 / len(free) * n})


costly = tests[tests['cost'] == 0.05]
pd.DataFrame({name: visible(rows) for name, rows in costly.groupby('situation')}).T.round(3)

# %% [markdown]
# ## What was seen
#
# With truth known to 0.0225 or better for all of 197 calls, the plain bias of outcome, token and turn GAE
# was 0.21 to 0.30, as large as the advantages themselves (0.20 and 0.21). All but 0.06 or less of that was
# offset, which training does not follow; step groups had a tilt of 0.10 and 0.11 because they are silent
# about singletons. Nine continuations rank calls best (0.79 and 0.81; four of them 0.58 and 0.61, all others
# 0.42 to 0.57), but cost 25.4 times the steps, and at equal steps their jitter is 0.59 against 0.35 for the
# outcome and 0.31 for turn GAE: here, more episodes buy more than better credit. A critic from 1600 episodes
# lowered the bias, not the noise.
#
# On the arms of section 12.2: at the start of training all methods follow the truth on `test` with the
# right sign, the outcome at 7/8 of its size, token GAE at less, step groups at least of all. Nothing here
# predicts that one of them drops `test` and another keeps it. What matters comes where it is a habit: with
# the code read and the right edit made, `test` has probability 0.934 and a true advantage of 0.023 ± 0.003
# at cost 0.05, `submit` has 0.094 and probability 0.005. A step holds about 8.5 such states, so `submit` is
# tried there once in some twenty steps, while a test's own sign takes more than two thousand tests to see.
# Whether forty steps end the habit is then a matter of luck, for every method: it has to be tried before it
# can be credited. That is for the first steps; later the policy, and with it the truth, is another.
#
# **Try it.** Judge one call with `measure_calls(3, 0, [1])`. Which methods change their mind between the two
# costs? Then add 0.05 to every `truth` in `lab` and run the scores again: which columns notice?
