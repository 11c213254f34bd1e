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
# # 14.9.6 Count what the doctor misses
#
# A check was seen to work on the batch for which it was written. Here are batches for which none was: random ones in
# verl's layout, healthy ones by seven estimators and in three precisions, and the same with one of 25 faults each. Nothing
# is given beyond the batch. They are counted twice: on the shapes and sizes of faults on which the checks were tuned, and
# on others. Both sets come from the same generator; the second has other seeds, shapes and sizes, and no other kind of
# batch. What this leaves open is said at the end.
#
# **Time** 15 min. **Assumes** [14.9](14_9_diagnose.ipynb). **Afterwards you can** measure the misses and false alarms of a
# list of checks on shapes and sizes that were not used to tune it.

# %%
import pandas as pd
import torch

from agentrl.batch_faults import estimates_in_groups
from agentrl.diagnosis import diagnose


def make_batch(
    g, groups=6, size_of_groups=4, prompt=12, response=40, noise=0.01, dtype=torch.float32, binary=True
):
    """A healthy GRPO batch in verl's layout: tensors, and uid."""
    n = groups * size_of_groups
    uid = torch.arange(n) // size_of_groups
    plen = torch.randint(3, prompt + 1, (groups,), generator=g)[uid]
    rlen = torch.randint(response // 2, response + 1, (n,), generator=g)
    column, before = torch.arange(response), torch.arange(prompt)
    keep = column < rlen[:, None]
    tools = (column % 13 >= 8) & (column < rlen[:, None] - 4)  # an observation of five tokens in each thirteen
    mask = keep & ~tools
    prompts = torch.randint(10, 500, (groups, prompt), generator=g)[uid]
    left = before >= prompt - plen[:, None]
    ids = torch.randint(10, 500, (n, response), generator=g)
    old = -torch.rand(n, response, generator=g).pow(2) * 3
    sampled = ((old + noise * torch.randn(n, response, generator=g)).clamp(max=0) * mask).to(dtype)
    reward = torch.rand(n, generator=g)
    reward = (reward > 0.5).float() if binary else reward
    reward[0], reward[1] = 1.0, 0.0
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    attention = torch.cat([left, keep], 1).long()
    a = estimates_in_groups(reward.double(), uid)['grpo'].float()
    return {
        'prompts': prompts * left, 'responses': ids * keep, 'response_mask': mask.long(), 'uid': uid,
        'input_ids': torch.cat([prompts * left, ids * keep], 1),
        'attention_mask': attention, 'position_ids': (attention.cumsum(1) - 1).clamp(min=0),
        'old_log_probs': old.to(dtype), 'rollout_log_probs': sampled, 'ref_log_prob': (old * 1.02).to(dtype),
        'token_level_rewards': last * reward[:, None], 'advantages': (a[:, None] * mask).to(dtype),
        'rollout_is_weights': ((old - sampled.float()).exp().clamp(max=2) * mask).to(dtype),
    }


# %% [markdown]
# ## Healthy batches

# %%
def with_estimator(b, name, g):
    """The batch with advantages by another estimator."""
    r, uid, mask = b['token_level_rewards'].sum(1).double(), b['uid'], b['response_mask']
    made = estimates_in_groups(r, uid)
    centred = made['dr_grpo']
    rows = made | {
        'batch scale': centred / (r.std() + 1e-4), 'reinforce++': (r - r.mean()) / r.std(),
        'remax': r - torch.rand(int(uid.max()) + 1, generator=g).double()[uid],
    }
    return b | {'advantages': rows[name][:, None].float() * mask}


NAMES = ('grpo', 'grpo, population deviation', 'dr_grpo', 'rloo', 'batch scale', 'reinforce++', 'remax')


# %%
def row_mean_ratio(b, mask):
    """exp of the mean log-ratio of each row's kept tokens, [B, 1]."""
    log_ratio = (b['old_log_probs'] - b['rollout_log_probs']) * mask
    return log_ratio.sum(1, keepdim=True).div(mask.sum(1, keepdim=True)).exp()


def habits(b):
    """{name: batch}: what trainers do differently and what is no fault."""
    mask, weights = b['response_mask'].bool(), b['rollout_is_weights']
    certain = mask & (b['old_log_probs'] > -0.02)
    attended = b['attention_mask'][:, -mask.shape[1]:].bool()
    end = attended & (attended.cumsum(1) == attended.sum(1, keepdim=True))
    runs = (mask & ~torch.roll(mask, 1, 1)).cumsum(1)
    last_turn = mask & (runs == runs.amax(1, keepdim=True))
    rare, logp = b['rollout_log_probs'].clone(), b['rollout_log_probs']
    rare[tuple(mask.nonzero()[5])] -= 1.5
    score = b['token_level_rewards'].sum(1, keepdim=True)
    return {
        'log-probs of tool tokens': b | {'rollout_log_probs': logp.where(mask, b['old_log_probs'])},
        'filled with -1': b | {'rollout_log_probs': logp.where(mask, -1.0)},
        'certain tokens at 0': b | {'rollout_log_probs': logp.masked_fill(certain, 0.0),
                                    'rollout_is_weights': weights.masked_fill(certain, 0.98)},
        'score on the last attended token': b | {'token_level_rewards': end * score},
        'last turn only': b | {'response_mask': last_turn.long(), 'advantages': b['advantages'] * last_turn},
        'one token far off': b | {'rollout_log_probs': rare},
        'weights of sequences': b | {'rollout_is_weights': row_mean_ratio(b, mask) * mask},
        'weights over their mean': b | {'rollout_is_weights': weights / weights[mask].mean()},
    }


# %%
def healthy_batches(g, **shape):
    """{name: batch}: estimators, precisions, and habits that are no faults."""
    b = make_batch(g, **shape)
    found = {name: with_estimator(b, name, g) for name in NAMES}
    found |= {str(d): make_batch(g, dtype=d, **shape) for d in (torch.bfloat16, torch.float16)}
    return found | habits(b)


# %% [markdown]
# ## Sick batches
#
# Each comes with the names of the checks that would be right. First the numbers: values that cannot be, copies, and
# policies that were not asked or are too far away.

# %%
def put(b, name, place, value):
    """The batch with one entry of a field changed."""
    x = b[name].clone()
    x[place] = value
    return b | {name: x}


def sick_numbers(b, g, size, place):
    """{fault: (names of right checks, batch)}: advantages and log-probabilities."""
    logp, old = b['rollout_log_probs'], b['old_log_probs']
    mask = b['response_mask'].bool()
    stale = (old - size * torch.rand(old.shape, generator=g)) * mask
    return {
        'NaN advantage': ('advantages', put(b, 'advantages', place, float('nan'))),
        'NaN log-prob': ('train_logp', put(b, 'old_log_probs', place, float('nan'))),
        '-inf log-prob': ('logp', put(b, 'rollout_log_probs', place, float('-inf'))),
        'wrong shape': ('input', b | {'old_log_probs': old[:, :-1]}),
        'all silent': ('nothing to learn', b | {'advantages': 0 * b['advantages']}),
        'log-probs above 0': ('log-prob range', b | {'old_log_probs': -old}),
        'old is a copy of rollout': ('copied log-probs', b | {'old_log_probs': logp}),
        'reference 0': ('reference', b | {'ref_log_prob': 0 * old}),
        'stale sampler': ('sampler gap', b | {'rollout_log_probs': stale}),
        'critic 0': ('critic', b | {'values': 0 * old, 'returns': 0 * old}),
    }


# %% [markdown]
# Then the order of rows and tokens: signs, shuffled rows, prompts, positions, and two responses that are one.

# %%
def with_twins(b):
    """The batch with its first response in the place of the second, which failed."""
    b, rows = {name: x.clone() for name, x in b.items()}, b['advantages'].sum(1) / b['response_mask'].sum(1)
    for name in ('responses', 'input_ids', 'attention_mask', 'position_ids', 'response_mask', 'rollout_log_probs',
                 'old_log_probs', 'ref_log_prob', 'rollout_is_weights'):
        b[name][1] = b[name][0]
    b['advantages'] = rows[:, None] * b['response_mask']
    b['token_level_rewards'][1] = 0
    return b


def sick_order(b):
    """{fault: (names of right checks, batch)}: rows, prompts and positions."""
    mask, prompts, responses = b['response_mask'].bool(), b['prompts'], b['responses']
    shuffled = (b['advantages'].sum(1) / mask.sum(1)).roll(1)[:, None] * mask
    keep = b['attention_mask'][:, prompts.shape[1]:]
    counted = torch.arange(b['input_ids'].shape[1]).expand(b['input_ids'].shape)
    early = torch.nn.functional.one_hot(torch.full((len(mask),), 9), mask.shape[1])
    score = b['token_level_rewards'].sum(1, keepdim=True)
    return {
        'sign turned': ('estimator', b | {'advantages': -b['advantages']}),
        'rows shuffled': ('estimator', b | {'advantages': shuffled}),
        'identical responses': ('twins', with_twins(b)),
        'input_ids against responses': ('ids', b | {'input_ids': torch.cat([prompts, responses.roll(1, 0)], 1)}),
        'attention on left padding': (
            'left padding', b | {'attention_mask': torch.cat([torch.ones_like(prompts), keep], 1)}
        ),
        'position_ids count padding': ('positions', b | {'position_ids': counted}),
        'reward before an observation is lost': ('token rewards', b | {'token_level_rewards': early * score}),
    }


# %% [markdown]
# Last the masks and the importance weights. A floor or a missing cap shows only where ratios are far from 1, so that
# these batches have an engine that is.

# %%
def sick_masks(b):
    """{fault: (names of right checks, batch)}: which tokens are trained."""
    mask, keep = b['response_mask'].bool(), b['attention_mask'][:, b['prompts'].shape[1]:].bool()
    everywhere = b['advantages'].sum(1, keepdim=True) / mask.sum(1, keepdim=True) * keep
    return {
        'tool mask forgotten': (
            'engine zeros, sampled mask', b | {'response_mask': keep.long(), 'advantages': everywhere}
        ),
        'mask inverted': ('sampled mask, engine zeros', b | {'response_mask': (keep & ~mask).long()}),
        'mask shifted': ('sampled mask', b | {'response_mask': mask.roll(1, 1).long() * keep}),
        'padding trained': ('padding, sampled mask', b | {'response_mask': (mask | ~keep).long()}),
        'mask holds 2': ('action_mask', b | {'response_mask': 2 * b['response_mask']}),
    }


# %%
def sick_weights(b, g, size, place):
    """{fault: (names of right checks, batch)}: importance weights, of tokens and of rows."""
    mask, old = b['response_mask'].bool(), b['old_log_probs']
    gap = (old - b['rollout_log_probs'] + size * torch.randn(old.shape, generator=g)) * mask
    far = b | {'rollout_log_probs': ((old - gap) * mask).clamp(max=0)}
    w = ((old - far['rollout_log_probs']) * mask).exp()
    by_row = b | {'rollout_log_probs': (old - size * torch.randn(len(old), 1, generator=g)).clamp(max=0) * mask}
    log_weight = 3.7 * size**0.1
    uncapped = put(b, 'rollout_log_probs', place, float(old[place]) - log_weight)
    huge = float(torch.tensor(log_weight).exp())
    floor_of_rows = row_mean_ratio(by_row, mask).clamp(0.8, 2) * mask
    return {
        'weights with a floor': ('lower clip, weight range', far | {'rollout_is_weights': w.clamp(0.5, 2) * mask}),
        'weights of rows with a floor': (
            'lower clip, weight range', by_row | {'rollout_is_weights': floor_of_rows}
        ),
        'weights without a cap': ('weight range', put(uncapped, 'rollout_is_weights', place, huge)),
    }


# %%
def sick_batches(g, size=1.0, **shape):
    """{fault: (names of right checks, batch)}; size scales what has a size."""
    b = make_batch(g, **shape)
    place = tuple(b['response_mask'].nonzero()[int(20 * size)])
    return sick_numbers(b, g, size, place) | sick_order(b) | sick_masks(b) | sick_weights(b, g, size, place)


# %% [markdown]
# ## Counting
#
# A fault is named right if one of the checks that turn red or suspicious has a right name.

# %%
def judge(batch, right):
    """'named right', 'another name', 'missed' or 'exception', and the checks that spoke."""
    try:
        report = diagnose(batch)
    except Exception as error:
        return 'exceptions', [type(error).__name__]
    found = report.names('red') + report.names('suspicious')
    result = 'missed' if not found else 'named right' if set(found) & set(right.split(', ')) else 'another name'
    return result, found


def judge_batches(seeds, size=1.0, **shape):
    """Counts over seeds, and the name of what went wrong."""
    kinds = ('named right', 'another name', 'missed', 'exceptions', 'false alarms', 'healthy batches')
    count, wrong = dict.fromkeys(kinds, 0), []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        for name, (right, batch) in sick_batches(g, size, **shape).items():
            result, found = judge(batch, right)
            count[result] += 1
            wrong += [(name, f'{result}: {", ".join(found)}')] if result != 'named right' else []
        for name, batch in healthy_batches(g, **shape).items():
            result, found = judge(batch, '')
            count['healthy batches'] += 1
            count['false alarms'] += result == 'another name'
            count['exceptions'] += result == 'exceptions'
            wrong += [(name, f'false alarm: {", ".join(found)}')] if found else []
    return count, wrong


# %% [markdown]
# ## The table
#
# First the shapes and sizes on which the checks were tuned, then others from the same generator: more and larger groups,
# shorter prompts and responses, graded rewards, a noisier engine, other seeds, and faults of 0.7 times the size. When these
# others were first counted, 2 of the then 120 faults were missed and 4 of 85 healthy batches gave an alarm. The checks of
# twins and of weights by rows were mended with that in view, so that the second set is not unseen any more. The third was
# first counted after that, and no check was changed because of it.

# %%
tuned, wrong_there = judge_batches(range(3))
second, wrong = judge_batches(
    range(100, 105), size=0.7, groups=9, size_of_groups=6, prompt=7, response=33, noise=0.02, binary=False
)
third, wrong_in_third = judge_batches(
    range(200, 205), size=0.8, groups=5, size_of_groups=8, prompt=10, response=48, noise=0.015
)
pd.DataFrame({'tuned': tuned, 'second set': second, 'third set': third}).T

# %%
pd.Series(wrong_there + wrong + wrong_in_third, dtype=object).value_counts().rename('batches')

# %% [markdown]
# ## What was seen
#
# On the shapes used for tuning all 75 faults were named right and none of 51 healthy batches gave an alarm. In the second
# and in the third set 124 of 125 faults were named right and 1 was missed, and none of 85 healthy batches gave an alarm.
# Both misses were two responses that are one. The third set is the one that no check was
# adjusted to.
#
# The numbers say less than they seem to. All three sets come from one generator, whose ids are random, whose engine
# differs from the trainer by noise, and whose faults are those that we thought of. The table measures whether the checks
# depend on sizes and seeds. It says nothing about habits of trainers that the generator lacks, nor about batches that a
# real run wrote, and none of these batches is one.
#
# **Try it.** Lower `size` until faults are missed. Which one goes first?
