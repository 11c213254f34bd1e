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
# # 6.2 Give every token its weight before splitting the batch
#
# Episodes differ in length: one calls `submit` at once, another reads, edits, tests and then submits. A loss
# must say how much a token of the long one counts beside a token of the short one, and three answers are in
# use. They train different things, as two episodes of 1 and 9 tokens show by hand. All three come with a
# trap: averages do not survive the splitting of a batch into pieces that fit into memory. Weights that are
# computed once, on the whole minibatch, do.
#
# **Time** 10 min. **Assumes** [6.1](06_1_gradient_and_mask.ipynb). **Afterwards you can** give each token
# its weight under three averages, and cut a minibatch into pieces without changing its gradient.

# %%
#@save aggregation
import torch

from agentrl.gradient import keep_only

# %% [markdown]
# ## Three averages, in loops
#
# Say which mean you mean. Let $N$ be the number of kept rows, those with at least one kept token, and $L_i$
# the number of kept tokens in row $i$.
#
# - `token_mean`: the sum over all tokens, divided by $\sum_i L_i$. Every token counts the same (DAPO, Yu et
#   al. 2025).
# - `seq_mean_token_mean`: the mean of each row, then the mean over rows. Every episode counts the same, so a
#   token of a long episode counts less (GRPO, Shao et al. 2024).
# - `seq_mean_token_sum`: the sum of each row, then the mean over rows (Dr. GRPO, Liu et al. 2025, who divide
#   the sum by a constant, the longest permitted length; ours is divided by the number of kept rows alone,
#   and a constant is the learning rate's business).

# %%
def aggregate_in_loops(x, mask, mode):
    rows = [[v for v, kept in zip(*row, strict=True) if kept] for row in zip(x, mask, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == 'token_mean':
        return sum(map(sum, rows)) / sum(map(len, rows))
    if mode == 'seq_mean_token_mean':
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(map(sum, rows)) / len(rows)


short_and_long = [[6.0] + 8 * [0.0], 9 * [1.0]]
mask_1_and_9 = [[1] + 8 * [0], 9 * [1]]
for mode in ('token_mean', 'seq_mean_token_mean', 'seq_mean_token_sum'):
    print(f'{mode:20}', aggregate_in_loops(short_and_long, mask_1_and_9, mode))

# %% [markdown]
# By hand: (6 + 9)/10 = 1.5, (6 + 1)/2 = 3.5, (6 + 9)/2 = 7.5.
#
# ## The same as weights
#
# Each of the three is a weighted sum, and the weights depend on the mask alone. So they can be computed
# before there is a loss. An all-zero mask gets all-zero weights: no kept token, no update, no NaN. Rows
# without a kept token do not count as rows. This matters when whole episodes are taken out of the update,
# for instance because they were cut off: the others must not be trained at half strength for it.

# %%
#@save
AGGREGATIONS = ('token_mean', 'seq_mean_token_mean', 'seq_mean_token_sum')


# %%
#@save
def loss_weights(mask, mode):
    """Weights [B, T-1], 0 where mask [B, T-1] is 0, such that loss = (weights * per_token_loss).sum().

    token_mean (DAPO, Yu et al. 2025): 1 / kept tokens. seq_mean_token_mean (GRPO, Shao et al. 2024):
    1 / (kept rows * kept tokens of the row). seq_mean_token_sum (after Dr. GRPO, Liu et al. 2025):
    1 / kept rows, those with a kept token. ValueError for another mode, or a mask that has not two dimensions.
    """
    if mask.dim() != 2:
        raise ValueError(f'mask has shape {list(mask.shape)}; allowed: [B, T-1], a row per episode')
    keep = mask.bool().to(torch.float64)  # [B, T-1]
    lengths = keep.sum(1, keepdim=True)  # [B, 1]
    rows = (lengths > 0).sum().clamp(min=1)
    if mode == 'token_mean':
        return keep / lengths.sum().clamp(min=1)
    if mode == 'seq_mean_token_mean':
        return keep / (lengths.clamp(min=1) * rows)
    if mode == 'seq_mean_token_sum':
        return keep / rows
    raise ValueError(f'loss aggregation {mode!r} is unknown; allowed: {", ".join(AGGREGATIONS)}')


# %% [markdown]
# What does one token weigh, and what share of the loss belongs to the long episode? Under `token_mean` the
# long one owns nine tenths of it, under `seq_mean_token_mean` half, at a ninth of the weight a token. The
# sum has the *shares* of the token mean but another size: its total grows with the length of the episodes,
# and the step with it, where the optimiser does not rescale (Adam mostly does).

# %%
from itertools import product

import pandas as pd
import torch.nn.functional as F

mask = torch.tensor(mask_1_and_9, dtype=torch.bool)  # [2, 9]
rows = []
for mode in AGGREGATIONS:
    w = loss_weights(mask, mode)
    rows.append([w[0, 0].item(), w[1, 0].item(), (w[1].sum() / w.sum()).item(), w.sum().item()])
columns = ['a token of the short', 'a token of the long', 'share of the long', 'sum']
pd.DataFrame(rows, index=AGGREGATIONS, columns=columns).round(4)

# %% [markdown]
# `aggregate` is the weighted sum. Values at dropped positions are replaced by zero before they meet their
# weight (6.1), so that padding may hold anything. On a random batch the loops and the weights agree.

# %%
#@save
def aggregate(x, mask, mode):
    """One scalar from x [B, T-1] over the kept positions of mask [B, T-1]; modes as in loss_weights."""
    return (loss_weights(mask, mode) * keep_only(x, mask)).sum()


# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(5, 7, generator=generator, dtype=torch.float64)
share = torch.tensor([[0.9], [0.5], [0.2], [0.7], [0.0]], dtype=torch.float64)  # the last row keeps nothing
mask = torch.rand(5, 7, generator=generator, dtype=torch.float64) < share
print('kept tokens a row:', mask.sum(1).tolist())
for mode in AGGREGATIONS:
    a, b = aggregate(x, mask, mode).item(), aggregate_in_loops(x.tolist(), mask.tolist(), mode)
    print(f'{mode:20} {a:8.4f}  loops {b:8.4f}  agree {abs(a - b) < 1e-12}')

# %% [markdown]
# Longer padding, another dropped row with NaN in it, a mask of numbers in place of booleans: nothing
# changes. A mode that does not exist is an error, and the message says which ones do.

# %%
wider = F.pad(x, (0, 3, 0, 1), value=torch.nan)  # [6, 10]
wider_mask = F.pad(mask.double(), (0, 3, 0, 1))
for mode in AGGREGATIONS:
    change = aggregate(wider, wider_mask, mode) - aggregate(x, mask, mode)
    print(f'{mode:20} changes by less than 1e-12: {change.abs().item() < 1e-12}')
print('nothing kept:', aggregate(x, torch.zeros_like(mask), 'token_mean').item())
try:
    loss_weights(mask, 'mean')
except ValueError as error:
    print(error)

# %% [markdown]
# ## Averages do not survive splitting, weights do
#
# A minibatch may be too large for one backward pass, or faster in pieces of similar length. The usual recipe
# is a loss for each micro-batch, its gradients added up and divided by the number of pieces. But a mean of
# means is the mean only if all pieces hold the same number of tokens. Watch it on a model of three
# parameters, six episodes of 1 to 9 tokens, pieces of two rows.

# %%
lengths = torch.tensor([1, 9, 3, 7, 2, 5])
mask = torch.arange(9) < lengths[:, None]  # [6, 9]
features = torch.randn(6, 9, 3, generator=generator, dtype=torch.float64)
advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0], dtype=torch.float64)[:, None]  # [6, 1]


def per_token_loss(theta, rows):
    return -advantages[rows] * F.logsigmoid(features[rows] @ theta)  # [rows, 9]


def gradient(weights, rows):
    theta = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad((weights * per_token_loss(theta, rows)).sum(), theta)[0]  # [3]


# %% [markdown]
# Three gradients: of the whole; the average over pieces, each with its own mean; and ours, where each piece
# uses its rows of the weights that were computed on the whole and the gradients are added. The last column
# says how far each is from the first, relative to its length.

# %%
def three_ways(mode, pieces):
    w = loss_weights(mask, mode)
    naive = sum(gradient(loss_weights(mask[piece], mode), piece) for piece in pieces) / len(pieces)
    ours = sum(gradient(w[piece], piece) for piece in pieces)
    return {'whole': gradient(w, list(range(6))), 'mean of means': naive, 'weights first': ours}


def distance(g, whole):
    return ((g - whole).norm() / whole.norm()).item()


rows = []
for mode in AGGREGATIONS:
    ways = three_ways(mode, ([0, 1], [2, 3], [4, 5]))
    rows += [[mode, name, *g.tolist(), distance(g, ways['whole'])] for name, g in ways.items()]
pd.DataFrame(rows, columns=['mode', 'how', 'd/dθ₀', 'd/dθ₁', 'd/dθ₂', 'distance']).round(4)

# %% [markdown]
# The mean of means is wrong for `token_mean`, whose pieces hold 10, 10 and 7 tokens, and right for the two
# others only because all pieces have two kept rows. Cut the batch into one, two and three rows and it is
# wrong for all. The weights do not mind: here is the worst relative distance over every way of cutting the
# six rows, in order, into pieces.

# %%
def cuts(n):
    for bits in product((0, 1), repeat=n - 1):
        ends = [i + 1 for i, b in enumerate(bits) if b] + [n]
        yield [list(range(a, b)) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


rows = []
for mode in AGGREGATIONS:
    ways = [three_ways(mode, pieces) for pieces in cuts(6)]
    naive = max(distance(way['mean of means'], way['whole']) for way in ways)
    ours = max(distance(way['weights first'], way['whole']) for way in ways)
    rows.append([mode, len(ways), round(naive, 3), ours < 1e-12])
pd.DataFrame(rows, columns=['mode', 'ways to cut', 'mean of means, worst', 'weights first below 1e-12'])

# %% [markdown]
# ## Which one is the policy gradient?
#
# The derivation of 6.1 sums over the tokens of an episode: `seq_mean_token_sum`. What do the others do? Take
# the toy with the end token again: stop with probability 0.2 at each of two places, episodes `E`, `w E`, `w
# w`. Give *every* episode the advantage 1. Then nothing is better than anything else, and the true gradient
# is zero. The estimate from a batch of $n$ episodes can be enumerated, all $3^n$ batches of it.

# %%
prob = torch.tensor([0.2, 0.16, 0.64], dtype=torch.float64)  # E, w E, w w
score = torch.tensor([[0.8, 0.0], [-0.2, 0.8], [-0.2, -0.2]], dtype=torch.float64)  # d log p / d logit
kept = torch.tensor([[1, 0], [1, 1], [1, 1]], dtype=torch.bool)


def expected_estimate(n, mode):
    batches = torch.tensor(list(product(range(3), repeat=n)))  # [3^n, n]
    estimates = torch.stack([aggregate(score[b], kept[b], mode) for b in batches])
    return (prob[batches].prod(1) * estimates).sum().item()


sizes = (1, 2, 4, 6)
table = {mode: [round(expected_estimate(n, mode), 4) + 0.0 for n in sizes] for mode in AGGREGATIONS}
pd.DataFrame(table, index=pd.Index(sizes, name='episodes a batch'))

# %% [markdown]
# The sum is right at any size. `token_mean` errs because its denominator depends on what was drawn, and the
# error fades as the batch grows. `seq_mean_token_mean` errs by 0.08 at any size: a good episode's tokens are
# pushed harder if it is short, a bad one's less if it is long. Advantage 1 pushes toward stopping, advantage
# −1 toward going on, so that failures grow longer, which Liu et al. 2025 report of GRPO. The probe is the
# extreme case: the advantages of one group add up to zero.

# %% [markdown]
# ## What was seen
#
# Of two episodes with 1 and 9 tokens, the long one gets 0.9 of the loss under `token_mean` and 0.5 under
# `seq_mean_token_mean`; under `seq_mean_token_sum` again 0.9, with total weight 5 in place of 1. A mean of
# means missed the gradient of `token_mean`; weights computed on the whole minibatch gave it to rounding for
# all 32 ways of cutting. With nothing to learn, the expected estimate at batch size 6 was 0.0089 for
# `token_mean`, 0.08 for `seq_mean_token_mean` and 0 for the sum. The training loop uses `token_mean` unless
# told otherwise.
#
# **Try it.** Change `lengths` so that all rows are equally long: which of the three modes are now the same,
# and which differences between "mean of means" and "weights first" are left? Then set `prob` and `score` for
# a policy that stops with probability 0.5.
