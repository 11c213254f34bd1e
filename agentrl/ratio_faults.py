# Made by tools/export.py from notebooks/14_faults/14_6_ratios.py. Do not edit: change it there, then `make export`.
# Body: 388292cf58d2e452
"""14.6 Say which ratio you mean."""

from agentrl.gradient import keep_only
from agentrl.mask_faults import Finding, first_place

# 14_faults/14_6_ratios, cell 2
SEQUENCE_RATIOS = {
    'sum': lambda log_ratio, mask: keep_only(log_ratio, mask).sum(1).exp(),
    'mean': lambda log_ratio, mask: (
        keep_only(log_ratio, mask).sum(1) / mask.bool().sum(1).clamp(min=1)
    ).exp(),
}


# 14_faults/14_6_ratios, cell 5
def check_sequence_ratio(
    sequence_weights, sequence_kind, train_logp, logp, action_mask, weight_cap=float('inf')
):
    """Weights [B] are the ratio that sequence_kind, 'sum' or 'mean', names, or a Finding."""
    if sequence_kind not in SEQUENCE_RATIOS:
        raise ValueError(
            f'sequence_kind={sequence_kind!r} is not known; choose one of {", ".join(SEQUENCE_RATIOS)}'
        )
    used = action_mask.bool().any(1)
    wrong = {}
    for kind, ratio in SEQUENCE_RATIOS.items():
        should = ratio(train_logp - logp, action_mask).clamp(max=weight_cap)
        wrong[kind] = used & ((sequence_weights - should).abs() > 1e-3 * should.clamp(min=1.0))
    if not wrong[sequence_kind].any():
        return None
    other = next(kind for kind in SEQUENCE_RATIOS if kind != sequence_kind)
    row = first_place(wrong[sequence_kind])['row']
    match = 'a ' + other + ' of log-ratios' if not wrong[other].any() else 'neither a sum nor a mean'
    return Finding(
        'sequence weights of another kind',
        f'called {sequence_kind}, they are {match}; the first that differs is '
        f'{sequence_weights[row]:.4g} for {int(action_mask[row].bool().sum())} tokens',
        row,
    )


# 14_faults/14_6_ratios, cell 9
def check_lower_clip(weights, train_logp, logp, action_mask):
    """No token weight [B, T-1] exceeds its ratio exp(train_logp - logp) on kept tokens, or a Finding."""
    ratio = keep_only(train_logp - logp, action_mask).exp()
    raised = action_mask.bool() & (weights > ratio * 1.001 + 1e-6)
    if not raised.any():
        return None
    place = first_place(raised & (ratio == ratio[raised].min()))
    return Finding(
        'a lower clip revives collapsed ratios',
        f'{int(raised.sum())} of {int(action_mask.bool().sum())} kept tokens '
        f'weigh more than their ratio; the smallest ratio {ratio[place["row"], place["column"]]:.2g} became '
        f'{weights[place["row"], place["column"]]:.3g}',
        **place,
    )
