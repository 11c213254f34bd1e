# Made by tools/export.py from notebooks/14_faults/14_1_masks.py. Do not edit: change it there, then `make export`.
# Body: ec10558f6ba066f0
"""14.1 Ask whose tokens are trained before you look at a curve."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from agentrl.cache import cached


# 14_faults/14_1_masks, cell 2
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


# 14_faults/14_1_masks, cell 2
def first_place(wrong):
    """Row and column of the first True in wrong [B, N], or row and None in wrong [B]; a dict for Finding."""
    row, *column = wrong.nonzero()[0].tolist()
    return {'row': row, 'column': column[0] if column else None}


# 14_faults/14_1_masks, cell 5
def owner_codes():
    """OWNER of 5.2, imported where owners are given: whoever checks another trainer's batch needs no gym."""
    from agentrl.episodes import OWNER

    return OWNER


MASKS = {
    'right': lambda owner, turn: owner[:, 1:] == owner_codes()['policy'],
    'inverted': lambda owner, turn: (owner[:, 1:] >= 0) & (owner[:, 1:] != owner_codes()['policy']),
    'everything': lambda owner, turn: turn[:, 1:] >= 0,
}


# 14_faults/14_1_masks, cell 7
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


# 14_faults/14_1_masks, cell 10
def shifted(mask, by):
    """mask [B, N], moved by one column to the left (-1) or to the right (+1)."""
    return F.pad(mask[:, :-1], (1, 0)) if by > 0 else F.pad(mask[:, 1:], (0, 1))


# 14_faults/14_1_masks, cell 10
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


# 14_faults/14_1_masks, cell 12
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


# 14_faults/14_1_masks, cell 14
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
