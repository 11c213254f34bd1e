# Made by tools/export.py from notebooks/13_staying_alive/13_1_truncated_importance_sampling.py. Do not edit: change it there, then `make export`.
# Body: 0118110cea5afc64
"""13.1 Weigh old samples, and do not lift the small weights."""

import math

import torch

from agentrl.gradient import check_kept, keep_only, masked_mean
from agentrl.ppo import check_shapes


# 13_staying_alive/13_1_truncated_importance_sampling, cell 2
def importance_ratio(log_ratio, mask):
    """r = exp(train - rollout log-probability) [B, T-1], detached; 0 where mask is not set.

    A log-ratio that is not a number, where mask is set, raises ValueError.
    """
    kept = keep_only(log_ratio.detach(), mask)
    if kept.isnan().any():
        row, column = kept.isnan().nonzero()[0].tolist()
        raise ValueError(f'the log-ratio in row {row}, column {column} is not a number; both policies must '
                         'give a log-probability for every token that the mask keeps')
    return keep_only(kept.exp(), mask)


# 13_staying_alive/13_1_truncated_importance_sampling, cell 4
def clipped_weights(log_ratio, mask, low=0.0, high=2.0):
    """w = clamp(r, low, high) [B, T-1], 0 where mask is not set; low=0 is truncated IS (Ionides 2008)."""
    check_band(low, high)
    return keep_only(importance_ratio(log_ratio, mask).clamp(low, high), mask)


# 13_staying_alive/13_1_truncated_importance_sampling, cell 4
def check_band(low, high):
    """ValueError unless 0 <= low <= 1 <= high: a weight of 1 must be possible where policies agree."""
    if not 0 <= low <= 1 <= high:
        raise ValueError(f'low={low}, high={high}: allowed is 0 <= low <= 1 <= high')


# 13_staying_alive/13_1_truncated_importance_sampling, cell 6
def icepop_weights(log_ratio, mask, low=0.5, high=2.0):
    """w = r where low <= r <= high, else 0: [B, T-1] (IcePop, Ling Team 2025)."""
    check_band(low, high)
    ratio = importance_ratio(log_ratio, mask)
    return keep_only(ratio, (ratio >= low) & (ratio <= high))


# 13_staying_alive/13_1_truncated_importance_sampling, cell 6
def floored_where(log_ratio, mask, where, low=0.5, high=2.0):
    """Weights with the lower clip only at the positions set in `where` [B, T-1]; min(r, high) elsewhere."""
    return torch.where(where, clipped_weights(log_ratio, mask, low, high),
                       clipped_weights(log_ratio, mask, 0.0, high))


# 13_staying_alive/13_1_truncated_importance_sampling, cell 8
def averaged_log_ratio(log_ratio, mask):
    """Each token gets its row's mean log-ratio (the ratio's geometric mean): [B, T-1], 0 outside the mask."""
    total = keep_only(log_ratio, mask).sum(1, keepdim=True)                       # [B, 1]
    mean = total / mask.bool().sum(1, keepdim=True).clamp(min=1)
    return keep_only(mean.expand(mask.shape), mask)


# 13_staying_alive/13_1_truncated_importance_sampling, cell 8
def summed_log_ratio(log_ratio, mask):
    """Each token gets its row's summed log-ratio (the ratio of whole sequences): [B, T-1], 0 outside."""
    total = keep_only(log_ratio, mask).sum(1, keepdim=True)                       # [B, 1]
    return keep_only(total.expand(mask.shape), mask)


# 13_staying_alive/13_1_truncated_importance_sampling, cell 10
MAX_KL_LOG_RATIO = 20.0


# 13_staying_alive/13_1_truncated_importance_sampling, cell 10
def kl_terms(log_ratio, mask):
    """e^x - 1 - x of the log-ratio x [B, T-1], x within +-MAX_KL_LOG_RATIO (k3, Schulman 2020), 0 outside.

    Over tokens that the rollout policy sampled their mean estimates KL(rollout || train).
    """
    check_kept(mask, log_ratio=log_ratio)
    x = keep_only(log_ratio.detach(), mask).clamp(-MAX_KL_LOG_RATIO, MAX_KL_LOG_RATIO)
    return x.expm1() - x


# 13_staying_alive/13_1_truncated_importance_sampling, cell 10
def effective_sample_size(weights, mask):
    """(sum w)^2 / (n sum w^2) over the n kept tokens (Kong 1992): 1 if all are equal, nan if all are 0."""
    check_kept(mask, weights=weights)
    if (keep_only(weights, mask) < 0).any():
        raise ValueError(f'weights go down to {keep_only(weights, mask).min().item()}; allowed: 0 or more')
    kept = keep_only(weights, mask)
    return kept.sum() ** 2 / (mask.bool().sum() * (kept ** 2).sum())


# 13_staying_alive/13_1_truncated_importance_sampling, cell 12
def ratio_metrics(log_ratio, weights, advantages, mask, low=0.5, high=2.0):
    """What the ratios of a batch look like, as floats; all arrays [B, T-1].

    kl: mean of kl_terms. below, above: shares of tokens with r < low, r > high. min_log_ratio. ess: effective
    sample size of the weights. signal_below: share of sum |w A| on tokens with r < low, nan if it is all 0.
    ValueError if nothing is kept, for shapes that differ, and for kept numbers that are not finite.
    """
    check_shapes(log_ratio=log_ratio, weights=weights, advantages=advantages, mask=mask)
    if not mask.bool().any():
        raise ValueError('mask keeps nothing; ratio metrics need one kept token or more')
    check_band(low, high)
    check_kept(mask, log_ratio=log_ratio, weights=weights, advantages=advantages)
    ratio, signal = importance_ratio(log_ratio, mask), keep_only((weights * advantages).abs(), mask)
    below = mask.bool() & (ratio < low)
    return {
        'kl': masked_mean(kl_terms(log_ratio, mask), mask).item(),
        'below': masked_mean(below.double(), mask).item(),
        'above': masked_mean((ratio > high).double(), mask).item(),
        'min_log_ratio': log_ratio[mask.bool()].min().item(),
        'ess': effective_sample_size(weights, mask).item(),
        'signal_below': (signal[below].sum() / signal.sum()).item(),
    }


# 13_staying_alive/13_1_truncated_importance_sampling, cell 14
def gradient_share(logp, coefficients, below, parameters):
    """Norm of the gradient of (coefficients * logp).sum() over `below` only, against that of the whole.

    logp [B, T-1] with its graph, which is kept; coefficients, below [B, T-1]; nan if the whole is 0. It is a
    ratio of norms: over 1 where the rest pulls the other way.
    """
    def norm(values):
        gradients = torch.autograd.grad((values * logp).sum(), parameters, retain_graph=True)
        return torch.stack([gradient.norm() for gradient in gradients]).norm().item()

    whole = norm(coefficients)
    if whole == 0:
        return float('nan')
    return norm(keep_only(coefficients, below)) / whole if below.any() else 0.0


# 13_staying_alive/13_1_truncated_importance_sampling, cell 16
TOY_RULES = {
    'no weight': lambda r: 1.0,
    'low 0.5': lambda r: min(max(r, 0.5), 2.0),
    'low 0': lambda r: min(r, 2.0),
    'IcePop': lambda r: r if 0.5 <= r <= 2.0 else 0.0,
}


# 13_staying_alive/13_1_truncated_importance_sampling, cell 16
def run_toy(rule, advantage=-1.0, start=0.0, steps=200, mu=0.98, n_actions=12, lr=1.0):
    """Log-ratio x of action 0 before each step, and after the last [steps + 1]; gradient norm a step [steps].

    Behaviour: mu on action 0, the rest even; the learner's first log-ratio is `start`. Only action 0 has an
    advantage. A step follows the expected gradient exactly: z <- z + lr mu w(r) A (e0 - p).
    """
    p = torch.full((n_actions,), (1 - mu * math.exp(start)) / (n_actions - 1), dtype=torch.float64)
    p[0] = mu * math.exp(start)
    z, e0 = p.log(), torch.eye(n_actions, dtype=torch.float64)[0]
    xs, norms = [start], []
    for _ in range(steps):
        gradient = mu * TOY_RULES[rule](math.exp(xs[-1])) * advantage * (e0 - z.softmax(0))
        z = z + lr * gradient
        xs.append(z.log_softmax(0)[0].item() - math.log(mu))
        norms.append(gradient.norm().item())
    return torch.tensor(xs, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)
