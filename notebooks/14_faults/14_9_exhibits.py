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
# # 14.9.4 Put every fault into a healthy batch
#
# A check that is always green is worth nothing, and one that is red whenever anything is wrong not much
# more. So we take a healthy dump of the book's trainer and put the exhibits of this chapter into it one by
# one, each together with all that a trainer would compute from it. What should turn red is its own check,
# and no other.
#
# **Time** 20 min. **Assumes** [14.9](14_9_diagnose.ipynb). **Afterwards you can** plant a fault with all
# its consequences in a dump, and show that its own check and no other turns red.

# %%
#@save exhibits
import torch

from agentrl import (
    credit_faults,
    group_faults,
    mask_faults,
    ratio_faults,
    weight_faults,
)
from agentrl.aggregation import loss_weights
from agentrl.credit import gae_advantages, outcome_rewards, returns_to_go
from agentrl.gradient import keep_only
from agentrl.step_groups import step_advantages

# %% [markdown]
# ## What follows from what
#
# A fault has consequences. If rewards change, token rewards, returns and advantages change with them,
# correctly; if log-probabilities do, weights do. Two small functions keep a dump consistent, so that a red
# check is red for the fault itself.

# %%
#@save
def with_rewards(mask, reward, group, healthy=None):
    """Fields that follow from episode rewards [B]; rows that are not healthy are out of their group."""
    healthy = torch.ones(len(reward), dtype=torch.bool) if healthy is None else healthy
    advantages, rewards = torch.zeros_like(reward), outcome_rewards(reward, mask)
    advantages[healthy] = step_advantages(reward[healthy], group[healthy].tolist())
    return {
        'reward': reward,
        'group': group,
        'rewards': rewards,
        'returns': returns_to_go(rewards, mask),
        'advantages': keep_only(advantages[:, None].expand(mask.shape), mask),
    }


def with_logp(mask, train_logp, logp):
    """Fields that follow from the trainer's and the engine's log-probabilities [B, T-1]."""
    return {
        'train_logp': train_logp,
        'logp': logp,
        'sequence_kind': 'mean',
        'weights': (train_logp - logp).exp().clamp(max=2.0),
        'sequence_weights': ratio_faults.SEQUENCE_RATIOS['mean'](train_logp - logp, mask),
    }


# %%
#@save
def dump_with_critic(dump, generator, gamma=0.99, lam=0.95):
    """The same step for PPO: random values, GAE, every other row cut by a clock and bootstrapped with 0.5."""
    mask, rewards = dump['action_mask'], dump['rewards']
    values = torch.rand(mask.shape, generator=generator, dtype=torch.float64)
    truncated, final_value = (
        torch.arange(len(mask)) % 2 == 1,
        torch.full((len(mask),), 0.5, dtype=torch.float64),
    )
    bonus = outcome_rewards(gamma * final_value * truncated, mask)
    advantages, returns = gae_advantages(rewards + bonus, values, mask, gamma, lam)
    return {name: value for name, value in dump.items() if name != 'group'} | {
        'values': values,
        'advantages': advantages,
        'returns': returns,
        'gamma': gamma,
        'lam': lam,
        'truncated': truncated,
        'final_value': final_value,
    }


# %% [markdown]
# The second dump shows the same episodes to PPO: random values stand for a critic, and every other row
# counts as cut by a clock and is bootstrapped. Both are healthy.

# %%
from agentrl.base import make_rl_base
from agentrl.diagnosis import diagnose, dump_step
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(group_size=8)
policy = make_rl_base(tok)
trajs = sample_groups(policy, make_tasks()[:2], tok, cfg, torch.Generator().manual_seed(0))
grpo = dump_step(policy, trajs, tok, cfg)
ppo = dump_with_critic(grpo, torch.Generator().manual_seed(1))
for name, dump in (('GRPO', grpo), ('PPO', ppo)):
    print(name, '-', diagnose(dump).summary())

# %% [markdown]
# ## The faults
#
# One function a room of the museum; each returns dumps by the exhibit's name, with the check that must see
# it.

# %%
#@save
def mask_exhibits(grpo):
    """Dumps with a fault of 14.1: {exhibit: (check that must turn red, dump)}."""
    mask, owner, turn = grpo['action_mask'], grpo['owner'], grpo['turn']
    one_more = mask | ((owner[:, 1:] < 0) & (owner[:, :-1] >= 0))  # the first padding token as well

    def blind(wrong):
        return {name: value for name, value in grpo.items() if name != 'owner'} | {
            'action_mask': wrong,
            'token_weights': loss_weights(wrong, grpo['loss_agg']),
        }

    return {
        'inverted mask': ('action mask', grpo | {'action_mask': mask_faults.MASKS['inverted'](owner, turn)}),
        'training on observations': (
            'action mask',
            grpo | {'action_mask': mask_faults.MASKS['everything'](owner, turn)},
        ),
        'inverted mask, no owners': ('sampled mask', blind(mask_faults.MASKS['inverted'](owner, turn))),
        'padding in the loss': ('padding', blind(one_more)),
    }


# %%
#@save
def credit_exhibits(grpo, ppo):
    """Dumps with a fault of 14.2 or a timeout of 14.4."""
    mask = grpo['action_mask']
    inputs = [ppo[name] for name in ('rewards', 'values', 'action_mask', 'gamma', 'lam')]
    late = torch.zeros_like(grpo['rewards'])
    late[:, -1] = 1.0  # behind the last call
    return {
        'GAE that decays across observations': (
            'GAE',
            ppo | {'advantages': credit_faults.decaying_gae(*inputs)[0]},
        ),
        'reward on a masked position': ('token rewards', grpo | {'rewards': late * ~mask}),
        'returns lost before an observation': (
            'returns',
            grpo
            | with_ones(grpo)
            | {'returns': credit_faults.returns_with_reset(with_ones(grpo)['rewards'], mask)},
        ),
        'timeouts as terminations': ('timeouts', ppo | {'returns': gae_advantages(*inputs)[1]}),
    }


def with_ones(grpo):
    """The dump's fields if the first episode of each group had passed and the others had not."""
    group = grpo['group']
    first = torch.cat([torch.ones(1, dtype=torch.bool), group[1:] != group[:-1]])
    return with_rewards(grpo['action_mask'], first.double(), group)


# %%
#@save
def identity_exhibits(grpo):
    """Dumps with a fault of 14.3."""
    mask, ids = grpo['action_mask'], grpo['ids'].clone()
    row, column = next((r, c) for r, c in mask.nonzero().tolist() if len(grpo['contexts'][r]) > 1)
    ids[row, column + 1] = int(ids[row, column + 1]) + 1  # another id in its place
    contexts = [list(calls) for calls in grpo['contexts']]
    contexts[row][1] = contexts[row][0]  # rendered again, without the first turn
    far = grpo['train_logp'].clone()
    far[row, column] -= 3.0
    twice = [0, 0, *range(2, len(ids))]  # row 0 is a second sample of its episode
    rows = {
        name: [value[n] for n in twice] if isinstance(value, list) else value[twice]
        for name, value in grpo.items()
        if name not in ('calls', 'group', 'token_weights', 'loss_agg')
        and hasattr(value, '__len__')
        and len(value) == len(ids)
    }
    again = {name: value for name, value in grpo.items() if name not in ('group', 'token_weights')} | rows
    return {
        'retokenized ids': ('token ids', grpo | {'ids': ids}),
        'history rendered again': ('call contexts', grpo | {'contexts': contexts}),
        'ratio before any update': ('first ratio', grpo | with_logp(mask, far, grpo['logp'])),
        'tokens trained twice': ('trained once', again),
    }


def cut_exhibits(grpo):
    """Dumps with a fault of 14.4 in the calls."""
    cut = grpo['calls'].assign(finish_reason=['length'] + ['stop'] * (len(grpo['calls']) - 1))
    fates = {'cut call executed': (True, False), 'cut call scored as a parse error': (False, True)}
    return {
        name: ('cut calls', grpo | {'calls': cut.assign(executed=executed, invalid=invalid)})
        for name, (executed, invalid) in fates.items()
    }


# %%
#@save
def group_exhibits(grpo):
    """Dumps with a fault of 14.5 (rounding shows in groups of 8), or of the episodes' votes (14.7)."""
    mask, group = grpo['action_mask'], grpo['group']
    first, ones = group == group[0], with_ones(grpo)
    odd = torch.where(ones['reward'] > 0, 0.95, 0.35).double()
    loo = torch.zeros_like(odd)
    loo[first] = group_faults.leave_one_out_advantages(odd[first])
    spread = with_rewards(mask, odd, group)
    error = ['container lost'] + [None] * (len(group) - 1)
    samples = torch.arange(len(group)).where(~(first & (ones['reward'] == 0)), 1)  # the rest is one episode
    # without ids: the rows were sampled apart, and may begin with equal calls
    apart = {name: value for name, value in (grpo | ones).items() if name != 'ids'}
    return {
        'float residue': (
            'group spread',
            grpo
            | spread
            | {'advantages': keep_only(torch.where(first, loo, 0.0)[:, None].expand(mask.shape), mask)},
        ),
        'errored sample given reward 0': (
            'errored rows',
            grpo | with_rewards(mask, ones['reward'].roll(1), group) | {'errors': error},
        ),
        'episode counted once a sample': ('fan-out', apart | {'episode': samples}),
    }


# %%
#@save
def ratio_exhibits(grpo):
    """Dumps with a fault of 14.6 or of the weights of 14.7."""
    mask, logp = grpo['action_mask'], grpo['logp']
    near, far = with_logp(mask, logp - 0.012 * mask, logp), logp.clone()
    row, column = mask.nonzero()[0].tolist()
    far[row, column] -= 30.0
    pieces = [list(range(len(mask) // 4)), list(range(len(mask) // 4, len(mask)))]
    split = weight_faults.effective_weights(lambda losses, m: (losses * m).sum() / m.sum() / 2, mask, pieces)
    return {
        'summed for averaged': (
            'sequence ratio',
            grpo
            | near
            | {'sequence_weights': ratio_faults.SEQUENCE_RATIOS['sum'](near['train_logp'] - logp, mask)},
        ),
        'collapsed ratio revived': (
            'lower clip',
            grpo
            | with_logp(mask, far, logp)
            | {'same_weights': False, 'weights': (far - logp).exp().clamp(0.5, 2.0)},
        ),
        'denominator counts masked rows': (
            'token weights',
            grpo | {'token_weights': grpo['token_weights'] * 25 / 30},
        ),
        'gradient depends on the split': ('token weights', grpo | {'token_weights': split}),
    }


# %%
#@save
def run_exhibits(grpo):
    """Dumps with a fault of 14.8; the lost rows are correctly left out of their groups."""
    healthy = torch.arange(len(grpo['group'])) > 0
    apart = grpo | with_rewards(grpo['action_mask'], grpo['reward'], grpo['group'], healthy)
    others, other_ids = [None] * (len(healthy) - 1), grpo['ids'].clone()
    other_ids[0, -1] = other_ids[0, -1] + 1
    key = list(range(len(healthy)))
    return {
        'malformed arguments kill the rollout': (
            'lost rollouts',
            apart | {'errors': ['JSONDecodeError: Unterminated string'] + others},
        ),
        'same seed, other tokens': (
            'rerun',
            grpo | {'key': key, 'rerun_key': key[::-1], 'rerun_ids': other_ids.flip(0)},
        ),
        'quota taken as fatal': ('quota errors', apart | {'errors': ['429: memory quota'] + others}),
    }


def all_exhibits(grpo, ppo):
    """Every exhibit of the chapter: {name: (check that must turn red, dump)}."""
    return (
        mask_exhibits(grpo)
        | credit_exhibits(grpo, ppo)
        | identity_exhibits(grpo)
        | cut_exhibits(grpo)
        | group_exhibits(grpo)
        | ratio_exhibits(grpo)
        | run_exhibits(grpo)
    )


# %%
import pandas as pd

pd.set_option('display.max_colwidth', None)
rows = []
for name, (expected, dump) in all_exhibits(grpo, ppo).items():
    report = diagnose(dump)
    red = report.table().query("result == 'red'")
    rows.append([
        name,
        ', '.join(red['check']),
        ', '.join(red['section']),
        ', '.join(red['fault']),
        report.names('red') == [expected],
    ])
found = pd.DataFrame(rows, columns=['exhibit', 'red', 'section', 'fault', 'this one alone'])
found

# %%
print(int(found['this one alone'].sum()), 'of', len(found), 'exhibits turn red their own check and no other')

# %% [markdown]
# ## What was seen
#
# Both dumps of the book's own trainer are healthy. Each of the 24 exhibits, put into one of them, turned
# its own check red and no other, and every check of 14.1 to 14.8 has at least one exhibit that it sees.
#
# **Try it.** Put two faults into one dump, such as an inverted mask and a lower clip. Which of them is
# named, and why is the other one not?
