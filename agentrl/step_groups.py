# Made by tools/export.py from notebooks/07_advantages/07_4_step_groups.py. Do not edit: change it there, then `make export`.
# Body: 20e2350174dba3ba
"""7.4 Compare only calls that were made in the same state."""

import hashlib

import torch

from agentrl.episodes import OWNER
from agentrl.gradient import check_switch, keep_only, same_within
from agentrl.tasks import canonical_source, rename


# 07_advantages/07_4_step_groups, cell 2
def state_key(env, seen):
    """Hash of an environment's state before a call, whatever its names; `seen`: the observations so far."""
    env = env.unwrapped
    number = {name: canonical for canonical, name in canonical_source(env.task.source)[1].items()}
    left = (env.max_edits - env.info['n_edits'], env.budget - env.info['n_turns'])
    state = (env.task.name, rename(env.source, number), left, [rename(text, number) for text in seen])
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


# 07_advantages/07_4_step_groups, cell 3
def call_texts(traj):
    """What the policy wrote in each call of a trajectory: list of texts."""
    wrote = [(traj.owner == OWNER['policy']) & (traj.turn == k) for k in range(traj.info['n_turns'])]
    return [traj.tok.decode(traj.ids[at].tolist()) for at in wrote]


# 07_advantages/07_4_step_groups, cell 3
def visited_states(env, task, calls, max_turns):
    """The state before each of `calls`, by making them again in `env`: list of keys."""
    env.reset(options={'task': task, 'max_turns': max_turns})
    keys, seen = [], []
    for call in calls:
        keys.append(state_key(env, seen))
        seen.append(env.step(call)[0])
    return keys


# 07_advantages/07_4_step_groups, cell 6
def step_advantages(returns, keys, std_normalize=True):
    """Advantages [N] of calls with returns-to-go [N] among those of the same key (GiGPO, Feng et al. 2025).

    The return minus the group's mean, divided if std_normalize by its sample standard deviation. A call
    without company, or whose group's returns differ by rounding only (section 6.1), gets exactly 0. ValueError
    for another number of keys, for returns that are not finite, and for a std_normalize that is no truth value.
    """
    check_switch('std_normalize', std_normalize)
    dtype = returns.dtype if isinstance(returns, torch.Tensor) else torch.float64
    returns = torch.as_tensor(returns, dtype=torch.float64)
    if returns.shape != (len(keys),):
        raise ValueError(f'returns have shape {list(returns.shape)}; allowed: [{len(keys)}], one a key')
    if (bad := ~returns.isfinite()).any():
        call = bad.nonzero()[0].item()
        raise ValueError(f'the return of call {call} is {returns[call].item()}; returns must be finite')
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    group = torch.tensor([number[key] for key in keys], dtype=torch.long)                     # [N]
    size = group.bincount(minlength=len(number))                                              # [groups]

    def over_group(values, reduce):
        return returns.new_zeros(len(number)).scatter_reduce(0, group, values, reduce, include_self=False)

    centred = returns - over_group(returns, 'mean')[group]
    spread = ~same_within(over_group(returns, 'amin'), over_group(returns, 'amax'), dtype)     # [groups]
    if std_normalize:
        variance = over_group(centred**2, 'sum') / (size - 1).clamp(min=1)
        centred = centred / variance.where(spread, 1.0).sqrt()[group]
    return keep_only(centred, spread[group])


# 07_advantages/07_4_step_groups, cell 8
def step_group_advantages(episode, step, turn, mask, weight=1.0):
    """A = episode + weight * step for each token (GiGPO, Feng et al. 2025): [B, T-1], 0 outside mask.

    episode [B]; step [N], the calls in order of row and turn; turn [B, T]; mask [B, T-1]. ValueError if N is
    not the number of calls in `turn`, for shapes that do not fit, or for a weight that is negative or infinite.
    """
    if turn.dim() != 2 or episode.shape != turn.shape[:1] or mask.shape != turn[:, 1:].shape:
        raise ValueError(f'episode, turn, mask: shapes {[list(x.shape) for x in (episode, turn, mask)]}; allowed: '
                         '[B], [B, T], [B, T-1]')
    n_calls = turn.amax(1) + 1                                                                # [B]
    if step.shape != (n_calls.sum(),) or not 0 <= weight < float('inf'):
        raise ValueError(f'{step.numel()} step advantages, weight {weight}; allowed: {int(n_calls.sum())}, one '
                         'for each call of the batch, and a finite weight of at least 0')
    for name, x in (('episode', episode), ('step', step)):
        if not x.isfinite().all():
            raise ValueError(f'{name} advantages hold {x[~x.isfinite()][0].item()}; all must be finite')
    place = (n_calls.cumsum(0) - n_calls)[:, None] + turn[:, 1:]                              # [B, T-1]
    tokens = episode[:, None] + weight * step[place.where(mask.bool(), 0)]
    return keep_only(tokens, mask)
