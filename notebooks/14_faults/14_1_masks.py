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
# # 14.1 Ask whose tokens are trained before you look at a curve
#
# This chapter is a museum. Its exhibits are faults that were reported in public, in frameworks that people
# trust; in most of them nothing crashed and the numbers were quietly wrong. Each has a label with the
# symptom, a wrong version that differs from ours in one place, what it does, the right version, and a check
# that you can run on the tensors of *your* trainer. The last section, 14.9, runs all of them at once. The
# first room is about the mask: the array which says what is trained at all.
#
# **Time** 15 min. **Assumes** [9.2](../09_grpo/09_2_training_loop.ipynb). **Afterwards you can** check
# whose tokens a mask keeps, by their owners or, without them, by the log-probabilities that the engine
# recorded.

# %%
#@save mask_faults
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from agentrl.cache import cached

# %% [markdown]
# ## What a check answers
#
# Every check of this chapter is a function of plain tensors. It returns `None` if it finds nothing, or a
# `Finding`: the fault by name, the evidence in numbers, and the first place at which it shows. Columns are
# those of the book: there are T−1 of them, and column t speaks of token t+1.


# %%
#@save
@dataclass(frozen=True)
class Finding:
    """What a check found: a fault's name, the evidence in numbers, and the first place where it shows."""

    fault: str
    evidence: str
    row: int | None = None
    column: int | None = None

    def __str__(self):
        place = [
            f'{name} {at}' for name, at in (('row', self.row), ('column', self.column)) if at is not None
        ]
        return f'{self.fault}: {self.evidence}' + f' (first at {", ".join(place)})' * bool(place)


def first_place(wrong):
    """Row and column of the first True in wrong [B, N], or row and None in wrong [B]; a dict for Finding."""
    row, *column = wrong.nonzero()[0].tolist()
    return {'row': row, 'column': column[0] if column else None}


# %%
print(Finding('example', '2 of 3 are wrong', **first_place(torch.tensor([[False, False], [False, True]]))))

# %% [markdown]
# The tensors to look at are a real batch: eight episodes of the RL base, two tasks with four siblings each.

# %%
from agentrl.base import make_rl_base
from agentrl.episodes import OWNER, collate
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

tok = build_tokenizer(make_tasks('all'))
cfg = RLConfig(group_size=4)
trajs = sample_groups(make_rl_base(tok), make_tasks()[:2], tok, cfg, torch.Generator().manual_seed(0))
batch = collate(trajs, tok.pad_id)
owner, mask = batch['owner'], batch['action_mask']
counts = {name: int((owner[:, 1:] == code).sum()) for name, code in OWNER.items()}
print(counts, ' kept by the mask:', int(mask.sum()))

# %% [markdown]
# ## Exhibit: the inverted mask
#
# **Symptom.** Loss and gradient norm look healthy and reward moves a little, but nothing the agent does gets
# better. **Reported** in RAGEN, issue 71: the state mask was inverted, so that gradient reached the states
# and not the actions. (RAGEN's pull request 66 shows how easily it happens: its debug output called the kept
# tokens "unmasked" and the dropped ones "masked".) **The wrong version** has one sign turned.
#
# Beside it hangs its milder relative, a mask that keeps *everything* behind the prompt, calls and
# observations alike. 6.1 and 12.1 say what this does to the gradient.

# %%
#@save
def owner_codes():
    """OWNER of 5.2, imported where owners are given: whoever checks another trainer's batch needs no gym."""
    from agentrl.episodes import OWNER

    return OWNER


MASKS = {
    'right': lambda owner, turn: owner[:, 1:] == owner_codes()['policy'],
    'inverted': lambda owner, turn: (owner[:, 1:] >= 0) & (owner[:, 1:] != owner_codes()['policy']),
    'everything': lambda owner, turn: turn[:, 1:] >= 0,
}

# %%
import pandas as pd

rows = {
    kind: {
        who: int((make(owner, batch['turn']) & (owner[:, 1:] == code)).sum()) for who, code in OWNER.items()
    }
    for kind, make in MASKS.items()
}
pd.DataFrame(rows).T.rename_axis('mask: kept tokens by')

# %% [markdown]
# What it does to a run: twelve steps of the book's trainer, four tasks a step, with each mask. Only the mask
# differs; the old log-probabilities are computed afresh under it, so that every ratio starts at 1 and no
# alarm on ratios can go off. The function imports the trainer itself, so that the checks need none.


# %%
#@save
@cached
def train_with_mask(kind, steps=12, seed=0):
    """History of `steps` steps of GRPO from the RL base, 4 tasks a step, under one of MASKS."""
    from agentrl.advantages import compute_advantages
    from agentrl.base import make_rl_base
    from agentrl.episodes import collate
    from agentrl.packing import action_log_probs
    from agentrl.tasks import make_tasks
    from agentrl.tokenizer import build_tokenizer
    from agentrl.training import RLConfig, train_rl

    tok = build_tokenizer(make_tasks('all'))
    policy = make_rl_base(tok)

    def prepare(trajs, tok, cfg):
        batch = collate(trajs, tok.pad_id)
        batch['action_mask'] = MASKS[kind](batch['owner'], batch['turn'])
        with torch.no_grad():
            batch['logp'] = action_log_probs(policy, batch['ids'], batch['length'], batch['action_mask'])
        return batch, compute_advantages(batch, cfg)

    return train_rl(
        policy, make_tasks('train'), tok, RLConfig(prompts_per_step=4, seed=seed), steps, prepare=prepare
    )


# %%
histories = {kind: pd.DataFrame(train_with_mask(kind)) for kind in MASKS}
columns = ['pass_rate', 'malformed', 'reads', 'turns', 'grad_norm']
early = {(kind, 'first 4'): history[columns][:4].mean() for kind, history in histories.items()}
late = {(kind, 'last 4'): history[columns][-4:].mean() for kind, history in histories.items()}
pd.DataFrame(early | late).T.sort_index(level=0, sort_remaining=False).rename_axis(['mask', 'steps']).round(3)

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import save_figure, use_style

use_style()
fig, axes = plt.subplots(1, 2, figsize=(10, 3.3), gridspec_kw={'wspace': 0.1})
styles = {'right': ('#0072B2', '-'), 'inverted': ('#D55E00', '--'), 'everything': ('#555555', ':')}
for ax, column, label in ((axes[0], 'pass_rate', 'pass rate'), (axes[1], 'grad_norm', 'gradient norm')):
    for kind, history in histories.items():
        color, line = styles.get(kind, ('#CC79A7', '-.'))
        ax.plot(history['step'] + 1, history[column], color=color, linestyle=line)
        if ax is axes[0]:
            end = (len(history), history[column].iloc[-1])
            ax.annotate(kind, end, (4, 0), textcoords='offset points', color=color, va='center')
    ax.set(xlabel='training step', ylabel=label, ylim=(0, None))
table = pd.concat([history[['step', *columns]].assign(mask=kind) for kind, history in histories.items()])
save_figure(fig, '14_1_masks', table)

# %% [markdown]
# One seed and twelve steps are an illustration, not a measurement, but this one is plain: with the mask inverted
# the pass rate stays where it began. The gradient norm, the number that people watch, is not small and not odd.
# In all steps but the last it is above 1, where it is clipped: a lot of learning, of something else. The run that
# does learn has the smallest norm, and at the end none, since by then each of its groups passes or fails as a
# whole. *Everything* learns slowly: among many foreign tokens the right ones are trained too.
#
# **The right version** is one comparison in 5.2: the mask is true where the *predicted* token's owner is the
# policy. **The check** compares mask and owners, and names four ways in which they disagree. A row that keeps
# nothing has been dropped on purpose and is left alone.


# %%
#@save
def shifted(mask, by):
    """mask [B, N], moved by one column to the left (-1) or to the right (+1)."""
    return F.pad(mask[:, :-1], (1, 0)) if by > 0 else F.pad(mask[:, 1:], (0, 1))


def check_action_mask(action_mask, owner):
    """The mask [B, T-1] keeps exactly what the policy wrote (owner [B, T], -1 on padding), or a Finding."""
    keep = action_mask.bool()
    used, who = keep.any(1), owner[:, 1:]
    codes = owner_codes()
    mine = who == codes['policy']
    wrong = (keep != mine) & used[:, None]
    if not wrong.any():
        return None
    names = {'nobody (padding)': -1} | {name: code for name, code in codes.items() if name != 'policy'}
    foreign = {name: int((keep & (who == code)).sum()) for name, code in names.items()}
    fault = (
        'inverted mask'
        if (keep == (~mine & (who >= 0)))[used].all()
        else 'shifted mask'
        if any((keep == shifted(mine, by))[used].all() for by in (-1, 1))
        else 'trains on tokens of others'
        if sum(foreign.values())
        else 'leaves out tokens of the policy'
    )
    evidence = (
        f'{sum(foreign.values())} of {int(keep.sum())} kept tokens are not the policy\'s '
        f'({", ".join(f"{n} by {name}" for name, n in foreign.items() if n) or "none"}); '
        f'{int((mine & ~keep & used[:, None]).sum())} of {int(mine.sum())} of its own are left out'
    )
    return Finding(fault, evidence, **first_place(wrong))


# %%
suspects = {kind: make(owner, batch['turn']) for kind, make in MASKS.items()}
suspects |= {'one too early': shifted(mask, -1), 'without call ends': mask & shifted(mask, -1)}
for name, suspect in suspects.items():
    print(f'{name:18}', check_action_mask(suspect, owner) or 'nothing found')

# %% [markdown]
# ## Without owners
#
# Many trainers do not store who wrote a token. They do store the log-probability at which the engine sampled
# it, and that is a witness: a token that somebody sampled has one, a token that nobody sampled has the zero
# with which the array was filled. A recorded log-probability *outside* the mask is proof. Zeros inside are a
# hint only, since an almost deterministic policy records a true 0 as well; we speak up above one half.


# %%
#@save
def check_sampled_mask(action_mask, logp):
    """Recorded sampling log-probs [B, T-1] (0 where nobody sampled) lie where the mask is, or a Finding."""
    keep = action_mask.bool()
    outside = (logp != 0) & ~keep & keep.any(1, keepdim=True)
    unscored = keep & (logp == 0)
    kept = int(keep.sum())
    if outside.any():
        return Finding(
            'sampled tokens are left out',
            f'{int(outside.sum())} sampled tokens lie outside the mask; of the {kept} kept tokens '
            f'{int(unscored.sum())} were never sampled',
            **first_place(outside),
        )
    if int(unscored.sum()) * 2 > kept:
        return Finding(
            'trains on tokens that nobody sampled',
            f'{int(unscored.sum())} of {kept} kept tokens have a recorded log-probability of exactly 0',
            **first_place(unscored),
        )
    return None


# %%
for name, suspect in suspects.items():
    print(f'{name:18}', check_sampled_mask(suspect, batch['logp']) or 'nothing found')

# %% [markdown]
# ## Exhibit: padding in the loss
#
# **Symptom.** Results depend on which episodes share a batch. **The wrong version** forgets that a row has an
# end. The check needs nothing but the attention mask.


# %%
#@save
def check_padding(action_mask, attention_mask):
    """No column of the mask [B, T-1] speaks of a padding token (attention_mask [B, T]), or a Finding."""
    wrong = action_mask.bool() & ~attention_mask[:, 1:].bool()
    if not wrong.any():
        return None
    return Finding(
        'trains on padding',
        f'{int(wrong.sum())} kept columns speak of padding in {int(wrong.any(1).sum())} of {len(wrong)} rows',
        **first_place(wrong),
    )


# %%
attention = owner >= 0
to_the_end = mask.cumsum(1) > 0  # from the first call to the end
print('to the end:', check_padding(to_the_end, attention))
print('ours:', check_padding(mask, attention) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# The inverted mask keeps 311 tokens, none of them the policy's 103. Over twelve steps its pass rate went from
# 0.156 to 0.164 (means of the first and the last four), that of the right mask from 0.328 to 0.602, that of the
# mask which keeps everything from 0.172 to 0.32; the gradient norms at the end were 2.085, 0.067 and 1.59. With
# owners the check told inverted, shifted, foreign and missing tokens apart; without, the engine's recorded
# log-probabilities gave all of them away.
#
# **Try it.** Add a mask that keeps the policy's tokens and those of the template to `MASKS`. What does the
# check say, what would a curve? Then print `check_sampled_mask` for a batch of your own trainer.
