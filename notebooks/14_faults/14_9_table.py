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
# # 14.9.3 Count what the doctor misses
#
# A check was seen to work on the batch for which it was written. Here are batches for which none was: random ones in verl's
# layout, healthy ones by seven estimators and in three precisions, and the same with one of 24 faults each, with nothing given beyond the batch. Shapes,
# lengths, rewards and the size of faults differ from those on which the checks were tuned.
#
# **Time** 10 min. **Assumes** [14.9](14_9_diagnose.ipynb). **Afterwards you can** measure the misses and false alarms of a check list
# on batches that were not used to write it.

# %%
import pandas as pd
import torch

from agentrl.batch_faults import estimates_in_groups
from agentrl.diagnosis import diagnose


def make_batch(g, groups=6, size_of_groups=4, prompt=12, response=40, noise=0.01, dtype=torch.float32, binary=True):
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
        'prompts': prompts * left, 'responses': ids * keep, 'input_ids': torch.cat([prompts * left, ids * keep], 1),
        'attention_mask': attention, 'position_ids': (attention.cumsum(1) - 1).clamp(min=0), 'response_mask': mask.long(),
        'old_log_probs': old.to(dtype), 'rollout_log_probs': sampled, 'ref_log_prob': (old * 1.02).to(dtype),
        'token_level_rewards': last * reward[:, None], 'advantages': (a[:, None] * mask).to(dtype),
        'rollout_is_weights': ((old - sampled.float()).exp().clamp(max=2) * mask).to(dtype), 'uid': uid,
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
def healthy_batches(g, **shape):
    """{name: batch}: estimators, precisions, and habits that are no faults."""
    b = make_batch(g, **shape)
    mask = b['response_mask'].bool()
    found = {name: with_estimator(b, name, g) for name in NAMES}
    found |= {str(d): make_batch(g, dtype=d, **shape) for d in (torch.bfloat16, torch.float16)}
    outside = b['rollout_log_probs'].where(mask, b['old_log_probs'])
    certain = mask & (b['old_log_probs'] > -0.02)
    late = b['attention_mask'][:, -mask.shape[1]:].bool()
    end = late & (late.cumsum(1) == late.sum(1, keepdim=True))
    runs = (mask & ~torch.roll(mask, 1, 1)).cumsum(1)
    last_turn = mask & (runs == runs.amax(1, keepdim=True))
    rare = b['rollout_log_probs'].clone()
    rare[tuple(mask.nonzero()[5])] -= 1.5
    mean = ((b['old_log_probs'] - b['rollout_log_probs']) * mask).sum(1, keepdim=True).div(mask.sum(1, keepdim=True)).exp()
    return found | {
        'log-probs of tool tokens': b | {'rollout_log_probs': outside},
        'filled with -1': b | {'rollout_log_probs': b['rollout_log_probs'].where(mask, -1.0)},
        'certain tokens at 0': b | {'rollout_log_probs': b['rollout_log_probs'].masked_fill(certain, 0.0),
                                    'rollout_is_weights': b['rollout_is_weights'].masked_fill(certain, 0.98)},
        'score on the last attended token': b | {'token_level_rewards': end * b['token_level_rewards'].sum(1, keepdim=True)},
        'last turn only': b | {'response_mask': last_turn.long(), 'advantages': b['advantages'] * last_turn},
        'one token far off': b | {'rollout_log_probs': rare},
        'weights of sequences': b | {'rollout_is_weights': mean * mask},
        'weights over their mean': b | {'rollout_is_weights': b['rollout_is_weights'] / b['rollout_is_weights'][mask].mean()},
    }


# %% [markdown]
# ## Sick batches
#
# Each with the checks whose name would be right.

# %%
def sick_batches(g, size=1.0, **shape):
    """{fault: (names of right checks, batch)}; size scales what has a size."""
    b = make_batch(g, **shape)
    mask, logp, old = b['response_mask'].bool(), b['rollout_log_probs'], b['old_log_probs']
    prompt = b['prompts'].shape[1]
    keep = b['attention_mask'][:, prompt:].bool()
    place = tuple(mask.nonzero()[int(20 * size)])

    def put(name, value):
        x = b[name].clone()
        x[place] = value
        return b | {name: x}

    ratio = (old - logp + size * torch.randn(old.shape, generator=g)) * mask
    far = {'rollout_log_probs': ((old - ratio) * mask).clamp(max=0)}
    w = ((old - far['rollout_log_probs']) * mask).exp()
    uncapped = b['rollout_is_weights'].clone()
    uncapped[place] = float(torch.tensor(3.7 * size ** 0.1).exp())
    alike = {k: v.clone() for k, v in b.items()}
    for name in ('responses', 'input_ids', 'attention_mask', 'position_ids', 'response_mask', 'rollout_log_probs', 'old_log_probs', 'ref_log_prob', 'rollout_is_weights'):
        alike[name][1] = alike[name][0]
    rows = b['advantages'].sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    alike['advantages'] = rows * alike['response_mask']
    alike['token_level_rewards'][1] = 0
    return {
        'NaN advantage': ('advantages', put('advantages', float('nan'))),
        'NaN log-prob': ('train_logp', put('old_log_probs', float('nan'))),
        '-inf log-prob': ('logp', put('rollout_log_probs', float('-inf'))),
        'sign turned': ('estimator', b | {'advantages': -b['advantages']}),
        'rows shuffled': ('estimator', b | {'advantages': (b['advantages'].sum(1) / mask.sum(1)).roll(1)[:, None] * mask}),
        'all silent': ('nothing to learn', b | {'advantages': 0 * b['advantages']}),
        'log-probs above 0': ('log-prob range', b | {'old_log_probs': -old}),
        'old is a copy of rollout': ('copied log-probs', b | {'old_log_probs': logp}),
        'reference 0': ('reference', b | {'ref_log_prob': 0 * old}),
        'stale sampler': ('sampler gap', b | {'rollout_log_probs': ((old - size * torch.rand(old.shape, generator=g)) * mask)}),
        'identical responses': ('twins', alike),
        'input_ids against responses': ('ids', b | {'input_ids': torch.cat([b['prompts'], b['responses'].roll(1, 0)], 1)}),
        'attention on left padding': ('left padding', b | {'attention_mask': torch.cat([torch.ones_like(b['prompts']), keep.long()], 1)}),
        'position_ids count padding': ('positions', b | {'position_ids': torch.arange(b['input_ids'].shape[1]).expand(b['input_ids'].shape)}),
        'tool mask forgotten': ('engine zeros, sampled mask', b | {'response_mask': keep.long(), 'advantages': b['advantages'].sum(1, keepdim=True) / mask.sum(1, keepdim=True) * keep}),
        'mask inverted': ('sampled mask, engine zeros', b | {'response_mask': (keep & ~mask).long()}),
        'mask shifted': ('sampled mask', b | {'response_mask': mask.roll(1, 1).long() * keep}),
        'padding trained': ('padding, sampled mask', b | {'response_mask': (mask | ~keep).long()}),
        'reward before an observation is lost': ('token rewards', b | {'token_level_rewards': torch.nn.functional.one_hot(torch.full((len(mask),), 9), mask.shape[1]) * b['token_level_rewards'].sum(1, keepdim=True)}),
        'weights with a floor': ('lower clip, weight range', b | far | {'rollout_is_weights': w.clamp(0.5, 2) * mask}),
        'weights without a cap': ('weight range', put('rollout_log_probs', float(old[place]) - 3.7 * size ** 0.1) | {'rollout_is_weights': uncapped}),
        'critic 0': ('critic', b | {'values': 0 * old, 'returns': 0 * old}),
        'wrong shape': ('input', b | {'old_log_probs': old[:, :-1]}),
        'mask holds 2': ('action_mask', b | {'response_mask': 2 * b['response_mask']}),
    }


# %%
def judge_batches(seeds, size=1.0, **shape):
    """Counts over seeds, and the name of what went wrong."""
    count, wrong = dict.fromkeys(('named right', 'another name', 'missed', 'false alarms', 'healthy batches', 'exceptions'), 0), []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        for name, (right, batch) in sick_batches(g, size, **shape).items():
            try:
                report = diagnose(batch)
            except Exception as error:
                count['exceptions'] += 1
                wrong.append((name, 'exception ' + type(error).__name__))
                continue
            found = report.names('red') + report.names('suspicious')
            result = 'missed' if not found else 'named right' if set(found) & set(right.split(', ')) else 'another name'
            count[result] += 1
            if result != 'named right':
                wrong.append((name, result + ': ' + ', '.join(found)))
        for name, batch in healthy_batches(g, **shape).items():
            red = diagnose(batch).names('red') + diagnose(batch).names('suspicious')
            count['healthy batches'] += 1
            count['false alarms'] += bool(red)
            wrong += [(name, 'false alarm: ' + ', '.join(red))] if red else []
    return count, wrong


# %% [markdown]
# ## The table
#
# First the shapes and sizes on which the checks were tuned, then others: more and smaller groups, shorter responses, graded rewards, a noisier engine, other
# seeds, and faults of 0.7 times the size.

# %%
tuned, wrong_there = judge_batches(range(3))
unseen, wrong = judge_batches(
    range(100, 105), size=0.7, groups=9, size_of_groups=6, prompt=7, response=33, noise=0.02, binary=False
)
pd.DataFrame({'tuned': tuned, 'unseen': unseen}).T

# %%
pd.Series(wrong, dtype=object).value_counts().rename('batches')

# %% [markdown]
# ## What was seen
#
# On the shapes used for tuning all 72 faults were named right and none of 51 healthy batches gave an alarm. On the
# unseen ones 118 of 120 faults were named right and 2 missed, and 4 of 85 healthy batches gave an alarm: more than we want, all by sequence weights, whose like
# values are taken for a floor. The generator is one and its ids are random, so that the table says nothing about habits of
# trainers which it lacks, nor about batches that a real run wrote.
#
# **Try it.** Lower `size` until faults are missed. Which one goes first?
