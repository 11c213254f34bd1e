# Made by tools/export.py from notebooks/12_multi_turn/12_6_mixtures.py. Do not edit: change it there, then `make export`.
# Body: f70b0adf74fbc954
"""12.6 Count tokens before you mix single-turn and multi-turn tasks."""

from dataclasses import replace
from functools import partial

import torch

from agentrl.aggregation import AGGREGATIONS, loss_weights
from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.environment import ACTIONS, EditBudgetEnv, parse_call, passes
from agentrl.exercises import exercise
from agentrl.rewards import make_reward
from agentrl.sampling import copy_tasks, draw_tasks, sample_groups
from agentrl.tasks import compact_source, make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, group_batch, heldout_stats, train_rl


# 12_multi_turn/12_6_mixtures, cell 2
def single_turn(task):
    """The task as a single question: `single_turn` is set, and the prompt ends with the compact source."""
    view = compact_source(task.source)
    issue = task.issue if task.issue.endswith(view) else f'{task.issue} {view}'
    return replace(task, single_turn=True, issue=issue)


# 12_multi_turn/12_6_mixtures, cell 2
def draw_names(task, rng):
    """Fresh names for a task of either format; a single-turn prompt is made after they are drawn."""
    fresh = randomize_names(task, rng)
    return single_turn(fresh) if task.single_turn else fresh


# 12_multi_turn/12_6_mixtures, cell 4
class MixedTurnEnv(EditBudgetEnv):
    """EditBudgetEnv in which the first call of a single-turn task is carried out and graded, stop 'graded'.

    A well-formed call counts as submitted: an edit is judged by what it made, any other call by the source
    as it is. A malformed call is no answer and not submitted. Either ends the episode (terminated) and costs
    what one call costs.
    """

    def step(self, action):
        if self.info['stop'] or not self.task.single_turn:
            return super().step(action)
        tool, op = parse_call(action)
        self.info['n_turns'] += 1
        ACTIONS[tool](self, op)
        answer = 'invalid' if tool == 'invalid' else 'submit'
        if tool not in ('invalid', 'submit'):
            ACTIONS['submit'](self, None)
        self.info['stop'] = 'graded'
        return '', self.reward(answer, lambda kind: passes(self, kind)), True, False, dict(self.info)


# 12_multi_turn/12_6_mixtures, cell 4
def make_mixed_env(cfg):
    """The MixedTurnEnv of a configuration."""
    reward = make_reward(cfg.reward, cfg.step_penalty, cfg.wrong_submit, cfg.invalid_penalty)
    return MixedTurnEnv(cfg.max_turns, reward, cfg.max_edits)


# 12_multi_turn/12_6_mixtures, cell 6
def sample_named(policy, tasks, tok, cfg, generator, env_factory=make_mixed_env, n=None):
    """`sample_groups` for tasks of both formats, names drawn for each episode: list of Trajectory."""
    copies = copy_tasks(tasks, cfg.group_size if n is None else n)
    named = [draw_names(task, generator) for task in copies]
    return sample_groups(policy, named, tok, replace(cfg, fresh_names=False), generator, env_factory, n=1)


# 12_multi_turn/12_6_mixtures, cell 6
def sample_mixture(policy, tasks, tok, cfg, generator, env_factory=make_mixed_env, n_single=4):
    """`sample_step`, but the first `n_single` of the prompts drawn are single-turn: list of Trajectory."""
    if not 0 <= n_single <= cfg.prompts_per_step:
        raise ValueError(f'n_single={n_single} must be from 0 to prompts_per_step={cfg.prompts_per_step}')
    picked = draw_tasks(tasks, cfg, generator)
    mixed = [single_turn(task) for task in picked[:n_single]] + picked[n_single:]
    return sample_named(policy, mixed, tok, cfg, generator, env_factory)


# 12_multi_turn/12_6_mixtures, cell 9
def is_single(trajs):
    """Which episodes were single-turn, read from their stop 'graded': bool [B]."""
    return torch.tensor([traj.info['stop'] == 'graded' for traj in trajs])


# 12_multi_turn/12_6_mixtures, cell 9
def single_share(weights, single):
    """Share of weights [B, T-1] that lies on the rows where single [B] is true; nan if all weights are 0."""
    return (weights[single].sum() / weights.sum()).item()


# 12_multi_turn/12_6_mixtures, cell 12
def format_scale(mask, single, mode):
    """Factors [B] that give each format half of the loss weight; 1 where only one format is there."""
    share = single_share(loss_weights(mask, mode), single)
    if share in (0.0, 1.0):
        return torch.ones(len(mask), dtype=torch.float64)
    return torch.where(single, 0.5 / share, 0.5 / (1 - share)).double()


# 12_multi_turn/12_6_mixtures, cell 12
def balanced_batch(trajs, tok, cfg):
    """`group_batch` with the advantages of each format scaled to half of each minibatch's loss weight."""
    batch, advantages = group_batch(trajs, tok, cfg)
    single, scale = is_single(trajs), torch.ones(len(trajs), dtype=torch.float64)
    for first in range(cfg.minibatches):
        rows = slice(first, None, cfg.minibatches)                      # as rl_update cuts them
        scale[rows] = format_scale(batch['action_mask'][rows], single[rows], cfg.loss_agg)
    return batch, advantages * scale[:, None]


# 12_multi_turn/12_6_mixtures, cell 14
def format_row(trajs, batch, advantages, cfg):
    """What each format did in a step (nan if absent); single-turn shares of policy tokens and of signal.

    The signal is the sum of loss weight times |advantage|, as trained; nan if all advantages are 0.
    """
    single, row = is_single(trajs), {}
    for name, wanted in (('single_turn', True), ('multi_turn', False)):
        part = [traj for traj, is_one in zip(trajs, single.tolist(), strict=True) if is_one == wanted]
        stats = behavior_stats(part) if part else {}
        row |= {f'{name}_{key}': stats.get(key, float('nan'))
                for key in ('pass_rate', 'reads', 'tests', 'edits', 'malformed')}
    weights = loss_weights(batch['action_mask'], cfg.loss_agg)
    return row | {'single_share_tokens': single_share(batch['action_mask'].double(), single),
                  'single_share_signal': single_share(weights * advantages.abs(), single)}


# 12_multi_turn/12_6_mixtures, cell 14
def recording(prepare, rows):
    """`prepare`, which also appends the `format_row` of each step to `rows`."""
    def recorded(trajs, tok, cfg):
        batch, advantages = prepare(trajs, tok, cfg)
        rows.append(format_row(trajs, batch, advantages, cfg))
        return batch, advantages

    return recorded


# 12_multi_turn/12_6_mixtures, cell 16
@exercise
def check_single_share(attempt):
    """Try `attempt(lengths, single, mode)` on all aggregations: 'right', or what is wrong, in words."""
    rng = torch.Generator().manual_seed(0)
    for mode in AGGREGATIONS:
        lengths = torch.randint(1, 20, (6,), generator=rng)
        single = torch.tensor([True, True, False, True, False, False])
        right = single_share(loss_weights(torch.arange(20) < lengths[:, None], mode), single)
        given = attempt(lengths.tolist(), single.tolist(), mode)
        if not isinstance(given, float) or abs(given - right) > 1e-9:
            return (f'{mode}: six episodes of {lengths.tolist()} policy tokens, single-turn where '
                    f'{single.tolist()}: the share is {right:.6f}, not {given!r}')
    return 'right, under ' + ', '.join(AGGREGATIONS)


# 12_multi_turn/12_6_mixtures, cell 18
MIXTURE_ARMS = {
    'multi-turn only': {'n_single': 0},
    '50/50 mixture': {'n_single': 4},
    'mixture, equal token weight': {'n_single': 4, 'balanced': True},
    'mixture, seq_mean': {'n_single': 4, 'loss_agg': 'seq_mean_token_mean'},
    'single-turn only': {'n_single': 8},
}


# 12_multi_turn/12_6_mixtures, cell 18
@cached
def train_mixture(cfg, n_single, balanced, base_seed, steps, evaluation):
    """Train the RL base on both formats: weights, history with a `format_row` a step, heldout by format."""
    tok = build_tokenizer(make_tasks('all'))
    policy, rows, heldout = make_rl_base(tok, base_seed), [], []
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps, make_mixed_env,
                       sample=partial(sample_mixture, n_single=n_single),
                       prepare=recording(balanced_batch if balanced else group_batch, rows))
    multi = make_tasks('heldout')
    for name, tasks in (('multi-turn', multi), ('single-turn', [single_turn(task) for task in multi])):
        rng = torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
        stats = heldout_stats(tasks, sample_named(policy, tasks, tok, cfg, rng, n=evaluation['samples']))
        heldout.append({'evaluated': name} | stats)
    history = [step | row for step, row in zip(history, rows, strict=True)]
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


# 12_multi_turn/12_6_mixtures, cell 19
def train_mixture_arm(arm, seed=0, base_seed=0):
    """`train_mixture` for a named arm."""
    settings = {'balanced': False} | MIXTURE_ARMS[arm]
    n_single, balanced = settings.pop('n_single'), settings.pop('balanced')
    return train_mixture(RLConfig(seed=seed, **settings), n_single, balanced, base_seed, STEPS, EVALUATION)


MIXTURE = Study('mixture', MIXTURE_ARMS, train_mixture_arm)
