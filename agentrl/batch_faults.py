# Made by tools/export.py from notebooks/14_faults/14_9_0_batch.py. Do not edit: change it there, then `make export`.
# Body: c127660c93f64e4b
"""14.9.0 See faults in what every trainer's batch holds."""

import math

import torch

from agentrl.gradient import keep_only
from agentrl.group_faults import is_healthy, row_advantages
from agentrl.mask_faults import Finding, check_sampled_mask, first_place, shifted
from agentrl.ratio_faults import check_lower_clip


# 14_faults/14_9_0_batch, cell 2
def group_means(x, group):
    """The mean of each row's group, [B], for x [B] and codes group [B]."""
    code = torch.unique(torch.as_tensor(group), return_inverse=True)[1]
    n = int(code.max()) + 1 if len(code) else 0
    count = torch.zeros(n, dtype=torch.float64).index_add_(0, code, torch.ones_like(x))
    return (torch.zeros(n, dtype=torch.float64).index_add_(0, code, x) / count.clamp(min=1))[code]


# 14_faults/14_9_0_batch, cell 2
def estimates_in_groups(reward, group):
    """Advantages [B] by estimators that compare within groups: {name: [B]}."""
    centred = reward - group_means(reward, group)
    size = (1 / group_means(1 / group_sizes(group), group)).round()
    variance = group_means(centred.square(), group)
    sample = (variance * size / (size - 1).clamp(min=1)).sqrt()
    return {
        'grpo': centred / (sample + 1e-6),
        'grpo, population deviation': centred / (variance.sqrt() + 1e-6),
        'grpo, epsilon 1e-4': centred / (sample + 1e-4),
        'dr_grpo': centred,
        'rloo': centred * size / (size - 1).clamp(min=1),
    }


# 14_faults/14_9_0_batch, cell 2
def group_sizes(group):
    """How many rows each row's group has, [B]."""
    _, code, count = torch.unique(torch.as_tensor(group), return_inverse=True, return_counts=True)
    return count[code].double()


# 14_faults/14_9_0_batch, cell 3
def fitted(a, x):
    """Slope and largest error of the best line a = slope * x + shift; slope 0 where x does not vary."""
    dx, da = x - x.mean(), a - a.mean()
    slope = float((dx * da).sum() / dx.square().sum().clamp(min=1e-300)) if dx.abs().max() > 1e-9 else 0.0
    return slope, float((da - slope * dx).abs().max())


ESTIMATORS = (
    'grpo', 'grpo, population deviation', 'grpo, epsilon 1e-4', 'dr_grpo', 'rloo', 'batch scale', 'remax',
    'reinforce++', 'gae',
)
IN_GROUPS = ESTIMATORS[:5]


# 14_faults/14_9_0_batch, cell 3
def recognise(a, reward, group, tolerance=1e-4):
    """(name, sign) of the estimator that makes advantages a [B] of reward [B] in group [B], or (None, 0)."""
    bound = tolerance * max(1.0, float(a.abs().max()))
    estimates = estimates_in_groups(reward, group)
    for sign in (1, -1):
        for name, estimate in estimates.items():
            if (sign * a - estimate).abs().max() < bound:
                return name, sign
    for name, x in (('batch scale', estimates['dr_grpo']), ('reinforce++', reward)):
        slope, error = fitted(a, x)
        if slope and error < bound:
            return name, 1 if slope > 0 else -1
    for sign in (1, -1):
        shift = sign * a - reward
        if (shift - group_means(shift, group)).abs().max() < bound:
            return 'remax', sign
    return None, 0


# 14_faults/14_9_0_batch, cell 5
def usable_rows(advantages, action_mask, errors=None):
    """One advantage a row [B] and the rows that hold one: both None where a row has several."""
    healthy = torch.tensor(is_healthy(errors, len(action_mask)), dtype=torch.bool)
    used = action_mask.any(1) & healthy
    a = row_advantages(advantages, action_mask)
    if advantages.dim() == 2:
        wrong = keep_only((advantages - a[:, None]).nan_to_num(0.0), action_mask).abs().amax(1)
        if (wrong[used] > 1e-2 * a[used].abs().clamp(min=1e-3)).any():
            return None, None
    return a, used


# 14_faults/14_9_0_batch, cell 6
def check_estimator(advantages, reward, group, action_mask, estimator=None, errors=None, precision=1e-6):
    """Advantages ([B] or [B, T-1]) are a known estimator's of reward [B] in group [B], or a Finding."""
    a, used = usable_rows(advantages, action_mask, errors)
    if a is None or estimator == 'gae' or int(used.sum()) < 2:
        return None
    a, reward, group = a[used], reward[used], torch.as_tensor(group)[used]
    if a.abs().max() == 0 or reward.max() - reward.min() < 1e-9:
        return None
    name, sign = recognise(a, reward, group, max(1e-3, 4 * precision))
    row = int(used.nonzero()[0])
    if sign < 0:
        return Finding('the sign of the advantages is turned', f'they are those of {name} times -1', row)
    if name and estimator in IN_GROUPS and name.split(',')[0] != estimator.split(',')[0]:
        return Finding('advantages of another estimator', f'called {estimator}, they are those of {name}', row)
    if name:
        return None
    for name, right in estimates_in_groups(reward, group).items():
        if (a.sort()[0] - right.sort()[0]).abs().max() < max(1e-3, 4 * precision) * max(1.0, float(a.abs().max())):
            place = int(used.nonzero()[int((a - right).abs().argmax())])
            return Finding('rows of rewards and advantages are in another order', f'sorted, they are those of {name}', place)
    inside = [x - group_means(x, group) for x in (a, reward)]
    scale = float((inside[0].square().sum() * inside[1].square().sum()).sqrt())
    correlation = float((inside[0] * inside[1]).sum()) / scale if scale > 1e-12 else 0.0
    if correlation < -0.5 and len(a) > 7:
        return Finding('advantages fall as rewards rise', f'correlation {correlation:.3g} within groups', row)
    return None


# 14_faults/14_9_0_batch, cell 7
def name_estimator(fields):
    """The estimator of a batch's fields: as declared, 'gae' with a critic, as recognised, or None."""
    if fields.get('estimator') is not None:
        return str(fields['estimator'])
    if 'values' in fields:
        return 'gae'
    if any(name not in fields for name in ('advantages', 'reward', 'group')):
        return None
    a, used = usable_rows(fields['advantages'], fields['action_mask'], fields.get('errors'))
    if a is None or int(used.sum()) < 2:
        return None
    group = torch.as_tensor(fields['group'])[used]
    name = recognise(a[used], fields['reward'][used], group, max(1e-3, 4 * fields['precision']))[0]
    lost = not all(is_healthy(fields.get('errors'), len(used)))  # lost rows may still be in a baseline
    return None if lost and name not in IN_GROUPS else name


# 14_faults/14_9_0_batch, cell 9
def check_silent(advantages, action_mask):
    """Some kept token has an advantage ([B] or [B, T-1]) other than 0, or a Finding."""
    tokens = advantages if advantages.dim() == 2 else advantages[:, None].expand(action_mask.shape)
    if len(action_mask) < 2 or not action_mask.any() or keep_only(tokens, action_mask).abs().max() > 1e-9:
        return None
    return Finding('nothing to learn', f'all {len(action_mask)} rows have advantage 0: every group is silent')


# 14_faults/14_9_0_batch, cell 10
def check_log_prob_range(action_mask, logp=None, train_logp=None, ref_logp=None, precision=1e-6):
    """No log-prob [B, T-1] of a kept token is above 0, or a Finding."""
    for name, x in (('logp', logp), ('train_logp', train_logp), ('ref_logp', ref_logp)):
        if x is not None and (above := action_mask & (x > max(1e-3, 2 * precision))).any():
            worst = float(x[above].max())
            return Finding('log-probabilities above 0', f'{int(above.sum())} of {name}, up to {worst:.3g}', **first_place(above))
    return None


# 14_faults/14_9_0_batch, cell 10
def check_reference(ref_logp, action_mask):
    """The reference policy's log-probs [B, T-1] are not all 0 on kept tokens, or a Finding."""
    if not action_mask.any() or (ref_logp[action_mask] != 0).any():
        return None
    return Finding('the reference policy was not asked', f'all {int(action_mask.sum())} log-probabilities are 0')


# 14_faults/14_9_0_batch, cell 10
def check_copied_log_probs(train_logp, logp, action_mask):
    """The trainer's log-probs [B, T-1] are not the engine's to the last digit, or a Finding."""
    kept = train_logp[action_mask]
    if len(kept) < 32 or not (kept != 0).any() or (kept != logp[action_mask]).any():
        return None
    return Finding('trainer and engine agree to the last digit', f'on {len(kept)} kept tokens: a copy (verl: bypass mode)?')


# 14_faults/14_9_0_batch, cell 10
def check_sampler_gap(train_logp, logp, action_mask, same_weights=None):
    """The engine's policy is near the trainer's by quantiles of the gap on kept tokens, or a Finding."""
    gap = (train_logp - logp)[action_mask].abs()
    if same_weights or len(gap) < 32:
        return None
    gap = gap[:: 1 + len(gap) // 10**6]  # quantile takes no more than 16 million
    middle, high = gap.quantile(torch.tensor([0.5, 0.95], dtype=gap.dtype)).tolist()
    if middle < 0.1 and high < 0.5:
        return None
    return Finding('the sampler is far from the trainer', f'the gap is {middle:.3g} nats at the median, {high:.3g} at 95%')


# 14_faults/14_9_0_batch, cell 11
def longest_runs(x):
    """For each True of x [B, N] the length of its run of Trues, 0 elsewhere: int [B, N]."""
    column = torch.arange(x.shape[1]).expand(x.shape)
    before = column.masked_fill(x, -1).cummax(1)[0]  # the last False at or before
    after = column.masked_fill(x, x.shape[1]).flip(1).cummin(1)[0].flip(1)
    return (after - before - 1) * x


# 14_faults/14_9_0_batch, cell 11
def check_engine_zeros(logp, train_logp, action_mask, shortest=2):
    """No run of kept tokens has the engine's log-prob 0 and a much lower one of the trainer, or a Finding."""
    zero = action_mask & (logp == 0)
    unsampled = zero & (longest_runs(zero) >= shortest) & (train_logp < -1e-3)
    surprising = unsampled & (train_logp < -0.5)
    if int(surprising.sum()) * 5 <= int(unsampled.sum()) or not unsampled.any():
        return None
    return Finding('trains on tokens that nobody sampled',
                   f'{int(unsampled.sum())} kept tokens have log-probability 0 of the engine, and '
                   f'{float(train_logp[unsampled].mean()):.3g} of the trainer', **first_place(unsampled))


# 14_faults/14_9_0_batch, cell 12
def check_twins(ids, group, action_mask, logp):
    """No two rows of a group were sampled alike, by less than one chance in a thousand for the batch; or a Finding."""
    largest = int(group_sizes(group).max()) if len(group) else 1
    rare = math.log(1e-3 / max(1, len(ids) * (largest - 1)))  # each row may equal each other of its group
    seen, total = {}, keep_only(logp, action_mask).sum(1)
    for row, keep in enumerate(action_mask):
        key = (int(group[row]), ids[row, 1:][keep].numpy().tobytes())
        if keep.any() and key in seen and total[row] < rare:
            return Finding('identical responses in a group',
                           f'rows {seen[key]} and {row}, of probability exp({float(total[row]):.3g})', row)
        seen.setdefault(key, row)
    return None


# 14_faults/14_9_0_batch, cell 12
def check_critic(values, action_mask):
    """The critic's values [B, T-1] differ somewhere on kept tokens, or a Finding."""
    kept = values[action_mask]
    if len(kept) < 8 or kept.max() > kept.min():
        return None
    return Finding('the critic says the same everywhere', f'{len(kept)} values of {float(kept[0]):.3g}')


# 14_faults/14_9_0_batch, cell 12
def check_given_ids(ids, given_ids):
    """input_ids [B, T] are prompts and responses side by side, given_ids [B, T], or a Finding."""
    if not (wrong := ids != given_ids).any():
        return None
    row, column = wrong.nonzero()[0].tolist()
    evidence = f'{int(wrong.sum())} ids differ; the first is {int(ids[row, column])}, not {int(given_ids[row, column])}'
    return Finding('ids are not prompt and response', evidence, row, max(column - 1, 0))


# 14_faults/14_9_0_batch, cell 13
def check_left_padding(ids, attention_mask):
    """No row's attended tokens begin with a run of the id that pads other rows, or of ids alike, or a Finding."""
    attended = attention_mask.bool()
    same = (ids == ids[:, :1]).cumprod(1).sum(1)  # length of the first run
    padding = ids[~attended].unique()
    known = torch.isin(ids[:, 0], padding) if len(padding) < 3 else torch.zeros(len(ids), dtype=torch.bool)
    wrong = attended[:, 0] & (same > 1) & (known | (same > 3))
    if not wrong.any():
        return None
    row = int(wrong.nonzero()[0])
    return Finding('attends to left padding', f'{int(wrong.sum())} rows begin with up to {int(same[wrong].max())} '
                   f'attended tokens of id {int(ids[row, 0])}', row)


# 14_faults/14_9_0_batch, cell 13
def check_positions(position_ids, attention_mask):
    """Positions [B, T] rise by 1 or begin anew at 0 from one attended token to the next, or a Finding."""
    attended, position = attention_mask.bool(), position_ids.long()
    both = attended[:, 1:] & attended[:, :-1]
    wrong = both & (position[:, 1:] != position[:, :-1] + 1) & (position[:, 1:] != 0)
    first = attended & (attended.cumsum(1) == 1) & (position > 1)
    if not (wrong.any() or first.any()):
        return None
    place = first_place(wrong if wrong.any() else first)
    return Finding('positions do not count attended tokens', f'{int(wrong.sum() + first.sum())} places', **place)


# 14_faults/14_9_0_batch, cell 14
def row_weights(weights, log_ratio, action_mask):
    """Weight and ratio of each row, both [B, 1], where rows have one weight each; None where tokens differ.

    The ratio is exp of the mean or of the sum of the row's log-ratios (14.6), whichever more weights equal.
    """
    row, used = row_advantages(weights, action_mask), action_mask.any(1)
    if keep_only(weights - row[:, None], action_mask).abs().max() > 1e-6 or row[used].max() == row[used].min():
        return None
    total = keep_only(log_ratio, action_mask).sum(1)
    kinds = (total / action_mask.sum(1).clamp(min=1)).exp(), total.exp()
    ratio = max(kinds, key=lambda kind: int(((row / kind).log().abs() < 0.01)[used].sum()))
    return row[:, None], ratio[:, None]


# 14_faults/14_9_0_batch, cell 14
def raised_by_floor(weights, ratio, action_mask, least=3):
    """Many weights [B, N] that are all the lowest, though their ratios differ and lie below; a Finding or None."""
    w, r = weights[action_mask], ratio[action_mask]
    lowest = w.min()
    pile = (w - lowest).abs() <= 1e-6 * lowest.abs()
    if lowest <= 0 or int(pile.sum()) < least or r[pile].max() / r[pile].min() < 1.05:
        return None
    if r[pile].min() > 0.97 * lowest or lowest > 0.999 * w.max():  # near its ratio, or all alike
        return None
    place = first_place(action_mask & (weights - lowest <= 1e-6) & (ratio < lowest))
    return Finding('a lower clip revives collapsed ratios',
                   f'{int(pile.sum())} weights are {float(lowest):.3g}, their ratios from {float(r[pile].min()):.2g}', **place)


# 14_faults/14_9_0_batch, cell 15
def check_weight_range(weights, train_logp, logp, action_mask, cap=20.0):
    """Importance weights [B, T-1], of tokens or of rows, have no floor, and a cap where ratios need one; or a Finding."""
    if not action_mask.any():
        return None
    w, log_ratio = weights[action_mask], train_logp - logp
    if w.max() > cap:
        place = first_place(action_mask & (weights == w.max()))
        return Finding('importance weights without a cap', f'the largest is {float(w.max()):.3g}', **place)
    if rows := row_weights(weights, log_ratio, action_mask):
        return raised_by_floor(*rows, action_mask.any(1, keepdim=True))
    return raised_by_floor(weights, log_ratio.exp(), action_mask) if len(w) >= 16 else None


# 14_faults/14_9_0_batch, cell 16
def check_scored_tokens(action_mask, logp):
    """As check_sampled_mask (14.1), if most kept tokens lack a log-prob [B, T-1] or a shift would fit; or a Finding."""
    sampled, kept = logp != 0, int(action_mask.sum())
    off = int((sampled ^ action_mask).sum())
    moved = min(int((sampled ^ shifted(action_mask, by)).sum()) for by in (-1, 1))
    if moved * 2 < off or int((action_mask & ~sampled).sum()) * 2 > kept:
        return check_sampled_mask(action_mask, logp)
    return None


# 14_faults/14_9_0_batch, cell 16
def check_raised_weights(weights, train_logp, logp, action_mask, precision=1e-6):
    """As check_lower_clip (14.6), up to one factor for all weights [B, T-1] and rounding; or a Finding.

    Weights of rows have their floor looked for in check_weight_range.
    """
    if not action_mask.any() or row_weights(weights, train_logp - logp, action_mask):
        return None
    w, ratio = weights[action_mask], (train_logp - logp)[action_mask].exp()
    factor = max(1.0, float((w / ratio.clamp(min=1e-30)).median()))
    return check_lower_clip(weights / factor / (1 + 8 * precision), train_logp, logp, action_mask)
