# Made by tools/export.py from notebooks/07_advantages/07_6_credit_lab.py. Do not edit: change it there, then `make export`.
# Body: 6c0c88096c308826
"""7.6 Judge the methods of credit against the truth."""

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


# 07_advantages/07_6_credit_lab, cell 2
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


# 07_advantages/07_6_credit_lab, cell 2
@dataclass
class LabEpisode:
    """An episode of the RL base: trajectory and snapshots; text of each call and key of the state before."""
    traj: object
    cuts: list
    texts: list
    keys: list


# 07_advantages/07_6_credit_lab, cell 3
@lru_cache(maxsize=1)
def lab_policy():
    """(tokenizer, RL base)."""
    tok = build_tokenizer(make_tasks('all'))
    return tok, make_rl_base(tok)


# 07_advantages/07_6_credit_lab, cell 3
def lab_rng(cfg, *what):
    """A generator of its own for everything that is drawn: no result depends on what else is measured."""
    digest = hashlib.sha256(repr((cfg.seed, *what)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


# 07_advantages/07_6_credit_lab, cell 3
@lru_cache(maxsize=4)
def lab_group(n, cfg=LabConfig()):
    """Episodes of the RL base on train task n, fresh names for each: list of LabEpisode."""
    (tok, policy), task, rng = lab_policy(), make_tasks('train')[n], lab_rng(cfg, 'group', n)
    tasks = [randomize_names(task, rng) for _ in range(cfg.group)]
    trajs = rollout_batch(policy, [EditBudgetEnv() for _ in tasks], tasks, tok, 6, 1.0, rng)
    return [LabEpisode(traj, snapshots(traj, EditBudgetEnv(), named, 6), call_texts(traj),
                       visited_states(EditBudgetEnv(), named, call_texts(traj), 6))
            for traj, named in zip(trajs, tasks)]


# 07_advantages/07_6_credit_lab, cell 4
CALL_KINDS = ('read', 'test', 'right edit', 'wrong edit', 'refused edit', 'submit', 'malformed')


# 07_advantages/07_6_credit_lab, cell 4
def call_kind(env, text):
    """(which of CALL_KINDS a call is, made in `env` as it stands; whether the source is repaired by then)."""
    tool, op = parse_call(text)
    if tool == 'edit':
        tool = 'right edit' if op == env.task.edit else 'wrong edit'
        tool = tool if env.info['n_edits'] < env.max_edits else 'refused edit'
    return 'malformed' if tool == 'invalid' else tool, passes(env, 'hidden')


# 07_advantages/07_6_credit_lab, cell 6
def returns_from(j, finished, cost):
    """What was earned from call j on: [N], of finished Episodes or Trajectories; a call costs `cost`."""
    verdict, calls = (torch.tensor([float(episode.info[name]) for episode in finished], dtype=torch.float64)
                      for name in ('hidden_pass', 'n_turns'))
    return verdict * (calls > j) - cost * (calls - j)


# 07_advantages/07_6_credit_lab, cell 6
def true_advantage(k, earned, before, after, cost):
    """(A, its standard error) of call k that earned `earned`; played on from before and from after it."""
    v, w = returns_from(k, before, cost), returns_from(k + 1, after, cost)
    return (earned + w.mean() - v.mean()).item(), (v.var() / len(v) + w.var() / len(w)).sqrt().item()


# 07_advantages/07_6_credit_lab, cell 8
def minus_group_mean(mine, theirs):
    """mine [R] minus the mean of mine and those of theirs [R, siblings] that are not NaN: [R]."""
    present = ~theirs.isnan()
    return mine - (mine + theirs.nansum(1)) / (1 + present.sum(1))


# 07_advantages/07_6_credit_lab, cell 8
def group_estimates(group, m, i, replayed, cost, cfg, rng):
    """Advantages of call i of episode m in each replay, siblings drawn anew: {method: [R]}."""
    others = [episode for n, episode in enumerate(group) if n != m]
    trajs, absent = [other.traj for other in others], [group[m].keys[i] not in other.keys for other in others]
    picks = torch.rand(len(replayed), len(others), generator=rng).argsort(1)[:, :cfg.siblings]
    same_state = returns_from(i, trajs, cost).masked_fill(torch.tensor(absent), float('nan'))
    outcome = minus_group_mean(returns_from(0, replayed, cost), returns_from(0, trajs, cost)[picks])
    step = minus_group_mean(returns_from(i, replayed, cost), same_state[picks])
    return {'outcome': outcome, 'step groups': step, 'outcome + step': outcome + step}


# 07_advantages/07_6_credit_lab, cell 9
def cost_rewards(batch, cost):
    """Rewards [B, T-1]: the verdict at the last kept token, minus `cost` at the last token of each call."""
    mask, turn = batch['action_mask'], batch['turn'][:, 1:]
    goes_on = F.pad(mask[:, 1:] & (turn[:, 1:] == turn[:, :-1]), (0, 1))                      # [B, T-1]
    return outcome_rewards(batch['reward'], mask) - cost * (mask & ~goes_on)


# 07_advantages/07_6_credit_lab, cell 9
@cached
def lab_critic_weights(vocabulary, cost, n, steps, seed=0):
    """Weights of a critic of the RL base where calls cost `cost`, fitted to n episodes of each train task."""
    (tok, policy), rng = lab_policy(), torch.Generator().manual_seed(seed)
    batch = collate(base_episodes(policy, tok, 'train', n, rng)[0], tok.pad_id)
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)
    fit_critic(critic, opt, batch, returns_to_go(cost_rewards(batch, cost), batch['action_mask']), steps, rng)
    return critic.state_dict()


# 07_advantages/07_6_credit_lab, cell 9
@lru_cache(maxsize=4)
def lab_critic(cost, n=24, steps=60):
    """That critic; without a cost it is the one of 7.2, made by the same recipe."""
    tok, policy = lab_policy()
    if cost == 0:
        return make_base_critic(tok, n, steps)
    critic = make_critic(policy)
    critic.load_state_dict(lab_critic_weights(tok.itos, cost, n, steps))
    return critic


# 07_advantages/07_6_credit_lab, cell 10
def call_means(tokens, batch):
    """Mean over the kept tokens of each call: [B, T-1] -> [B, K], NaN where an episode has no such call."""
    mask, turn = batch['action_mask'], batch['turn'][:, 1:].clamp(min=0)
    sums, counts = (x.new_zeros(len(x), int(turn.max()) + 1).scatter_add(1, turn, x * mask)
                    for x in (tokens, torch.ones_like(tokens)))
    return sums / counts


# 07_advantages/07_6_credit_lab, cell 10
def distinct_values(critic, batch):
    """batch_values, computed once for rows that are equal (replays often are)."""
    distinct, place = torch.unique(batch['ids'], dim=0, return_inverse=True)
    number = torch.arange(len(place))
    first = torch.full((len(distinct),), len(place)).scatter_reduce(0, place, number, 'amin')
    return batch_values(critic, take_rows(batch, first))[place]


# 07_advantages/07_6_credit_lab, cell 10
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


# 07_advantages/07_6_credit_lab, cell 12
def continuation_estimates(earned, before, after):
    """Advantages by m continuations before and m after a call: {method: [R / m]}, of returns [R] of each."""
    return {f'MC {m}': earned + after.reshape(-1, m).mean(1) - before.reshape(-1, m).mean(1) for m in (4, 9)}


LAB_COSTS = (0.0, 0.05)                                                     # of a call


# 07_advantages/07_6_credit_lab, cell 12
def play_on(n, m, j, cfg):
    """From cut j of episode m of train task n: (Episodes for the truth, Trajectories to be judged)."""
    cut, rng = lab_group(n, cfg)[m].cuts[j], lab_rng(cfg, 'play on', n, m, j)
    ends = continue_episodes(lab_policy()[1], [cut], cfg.truth + cfg.replays, rng)[0]
    return ends[:cfg.truth], [make_trajectory(end) for end in ends[cfg.truth:]]


# 07_advantages/07_6_credit_lab, cell 13
def judge_call(n, m, k, cost, earned, replays, by_critic, cfg):
    """(method, advantages of call k, of whichever call is made in its place), over the replays."""
    given, fresh = ({name: calls[:, k] for name, calls in by_critic[j].items()} for j in (k + 1, k))
    for j, estimates in ((k + 1, given), (k, fresh)):
        rng = lab_rng(cfg, 'siblings', n, m, k)                         # the same siblings for both
        estimates |= group_estimates(lab_group(n, cfg), m, k, replays[j], cost, cfg, rng)
    given |= continuation_estimates(earned, *(returns_from(j, replays[j], cost) for j in (k, k + 1)))
    nothing = torch.zeros(2, dtype=torch.float64)                       # exact: the mean of A over calls is 0
    return [(name, given[name], fresh.get(name, nothing)) for name in given]


# 07_advantages/07_6_credit_lab, cell 13
def summarize_estimates(given, fresh):
    """What is kept of advantages of a call [N] and of fresh ones [M]: means of both halves, and more."""
    halves = {f'{name}_{half}': part.mean().item() for name, x in (('mean', given), ('fresh', fresh))
              for half, part in enumerate(x.chunk(2), start=1)}
    up, down = ((sign * given > 1e-9).double().mean().item() for sign in (1, -1))
    return halves | {'var': given.var().item(), 'draw': given[0].item(), 'up': up, 'down': down}


# 07_advantages/07_6_credit_lab, cell 14
def call_probability(state, text):
    """Probability that the policy makes the call `text` in a snapshot."""
    ids = state.tok.encode(text)
    with torch.no_grad():
        logp = sequence_log_probs(lab_policy()[1], torch.tensor([state.ids + ids]))[0]        # [T-1]
    return logp[-len(ids):].sum().exp().item()


# 07_advantages/07_6_credit_lab, cell 14
def describe_call(episode, k, cost):
    """What is known of call k: kind, probability (and that of submitting), what came before, its reward."""
    state, text = episode.cuts[k], episode.texts[k]
    kind, repaired = call_kind(state.env, text)
    earned = (episode.traj.reward if k + 1 == len(episode.texts) else 0.0) - cost
    return {'call': k, 'kind': kind, 'repaired': repaired, 'reads': state.env.info['n_reads'],
            'edits': state.env.info['n_edits'], 'prob': call_probability(state, text),
            'submit_prob': call_probability(state, '<call> submit </call>'), 'cost': cost, 'earned': earned}


# 07_advantages/07_6_credit_lab, cell 14
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


# 07_advantages/07_6_credit_lab, cell 16
def lab_calls(n, cfg=LabConfig()):
    """[(episode, calls)] to measure: all of some episodes, and the first malformed call of the others."""
    group = lab_group(n, cfg)
    chosen = [(m, list(range(len(group[m].texts)))) for m in range(cfg.whole)]
    malformed = [(m, [k]) for m in range(cfg.whole, cfg.group) for k, text in enumerate(group[m].texts)
                 if parse_call(text)[0] == 'invalid']
    return chosen + malformed[:1]


# 07_advantages/07_6_credit_lab, cell 16
def lab_task(n, cfg=LabConfig()):
    """All rows of train task n; `whole` says whether every call of the row's episode was measured."""
    torch.set_num_threads(1)
    return [row | {'whole': m < cfg.whole} for m, calls in lab_calls(n, cfg)
            for row in measure_calls(n, m, calls, cfg)]


# 07_advantages/07_6_credit_lab, cell 16
def lab_path():
    """Where the lab's results are stored."""
    return figures_dir() / 'data' / 'credit_lab.csv'


# 07_advantages/07_6_credit_lab, cell 17
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
