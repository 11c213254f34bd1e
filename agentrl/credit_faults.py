# Made by tools/export.py from notebooks/14_faults/14_2_credit.py. Do not edit: change it there, then `make export`.
# Body: f2541f53233bf335
"""14.2 Let no observation stand between a call and its reward."""

import torch

from agentrl.credit import gae_advantages
from agentrl.gradient import keep_only
from agentrl.mask_faults import Finding, first_place
from agentrl.turns import turn_advantages
from agentrl.whitening import masked_whiten


# 14_faults/14_2_credit, cell 3
def decaying_gae(rewards, values, mask, gamma, lam):
    """WRONG, for comparison: GAE in which the environment's tokens are steps too; [B, T-1] each."""
    advantages, advantage, next_value = torch.zeros_like(values), *values.new_zeros(2, len(values))
    for t in reversed(range(values.shape[1])):
        advantage = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * advantage
        next_value = values[:, t]
        advantages[:, t] = advantage
    return keep_only(advantages, mask), keep_only(advantages + values, mask)


# 14_faults/14_2_credit, cell 6
def same_advantages(a, b, mask, tolerance=1e-3):
    """Do two advantages [B, T-1] agree on the mask, as they are or whitened?"""
    a, b = keep_only(a, mask), keep_only(b, mask)
    scale = max(1.0, b.abs().max().item())
    whitened = (masked_whiten(a, mask) - masked_whiten(b, mask)).abs().max() < 10 * tolerance
    return bool((a - b).abs().max() < tolerance * scale or whitened)


# 14_faults/14_2_credit, cell 6
def check_token_gae(advantages, rewards, values, action_mask, gamma, lam, turn=None, truncated=None):
    """Advantages [B, T-1] are GAE over kept tokens (or calls, given turn [B, T]), or a Finding."""
    rows = torch.ones(len(action_mask), dtype=torch.bool) if truncated is None else ~truncated.bool()
    if advantages.dim() == 1:  # one a row
        advantages = advantages[:, None].expand(action_mask.shape)
    given, mask = advantages[rows], action_mask[rows].bool()
    if not mask.any():
        return None
    inputs = keep_only(rewards[rows], mask), values[rows], mask
    right = [gae_advantages(*inputs, gamma, lam)[0]]
    if turn is not None:
        right.append(turn_advantages(*inputs, turn[rows][:, 1:], gamma, lam)[0])
    if any(same_advantages(given, a, mask) for a in right):
        return None
    wrong = keep_only((given - right[0]).abs(), mask)
    place = first_place(wrong > 0.5 * wrong.max())
    place['row'] = int(rows.nonzero()[place['row']])
    decays = same_advantages(given, decaying_gae(*inputs, gamma, lam)[0], mask)
    fault = 'advantages decay across observations' if decays else 'advantages are not GAE of these rewards'
    return Finding(fault, f'largest difference from GAE over kept tokens {wrong.max():.3g}', **place)


# 14_faults/14_2_credit, cell 9
def check_token_rewards(rewards, action_mask, reward=None):
    """Token rewards [B, T-1] stand on kept tokens and, given reward [B], add up to it, or a Finding."""
    stray = (rewards != 0) & ~action_mask.bool()
    if stray.any():
        return Finding(
            'reward where the mask is not set',
            f'{int(stray.sum())} rewards, {keep_only(rewards, stray).sum():.3g} in all, stand on tokens '
            'that are not trained',
            **first_place(stray),
        )
    if reward is not None and (off := (rewards.sum(1) - reward).abs() > 1e-4).any():
        row = first_place(off)['row']
        return Finding(
            'token rewards do not add up',
            f'{int(off.sum())} of {len(off)} rows; in the first the tokens '
            f'hold {rewards[row].sum():.3g}, the episode earned {reward[row]:.3g}',
            row,
        )
    return None


# 14_faults/14_2_credit, cell 11
def returns_with_reset(rewards, mask):
    """WRONG, for comparison: the running sum is set to 0 where the mask is."""
    result, running = torch.zeros_like(rewards), rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        running = (running + rewards[:, t]) * mask[:, t]
        result[:, t] = running
    return result


# 14_faults/14_2_credit, cell 13
def check_returns(returns, rewards, action_mask, gamma=1.0):
    """Returns [B, T-1] are sums of rewards to the row's end, gamma a kept token, or a Finding."""
    mask, right, running = action_mask.bool(), torch.zeros_like(rewards), rewards.new_zeros(len(rewards))
    for t in reversed(range(mask.shape[1])):  # one pass, however long the row
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        right[:, t] = running
    wrong = keep_only((returns - right).abs(), mask) > 1e-4 * max(1.0, right.abs().max().item())
    if not wrong.any():
        return None
    place = first_place(wrong)
    had, should = returns[place['row'], place['column']], right[place['row'], place['column']]
    return Finding(
        'returns are lost on the way back',
        f'{int(wrong.sum())} of {int(mask.sum())} kept tokens; the '
        f'first has {had:.3g} and should have {should:.3g}',
        **place,
    )
