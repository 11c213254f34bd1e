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
# # 8.2 Bound the critic's step, or not
#
# The critic is trained on the same batch as the policy, for the same number of epochs. The code that made
# PPO popular clips its step as well: a value may move only so far from what it was when the batch was
# collected. We take the clipped value loss apart in the same way as the clipped objective (8.1): cases by
# hand, where the gradient is exactly zero, and what it does to a critic whose returns are large. It is a
# habit more than a theorem, and the evidence for it is mixed.
#
# **Time** 10 min. **Assumes** [6.1](../06_policy_gradient/06_1_gradient_and_mask.ipynb),
# [8.1](08_1_clipped_update.ipynb). **Afterwards you can** find where the clipped value loss has no
# gradient, and predict how larger returns slow the critic down.

# %%
#@save value
import torch

from agentrl.gradient import check_kept, keep_only, masked_mean
from agentrl.ppo import check_clip, check_shapes

# %% [markdown]
# ## Cases by hand
#
# Let $V$ be the value now, $V_{\text{old}}$ the value when the batch was collected and $G$ the return. With
#
# $$V_{\text{clip}} = V_{\text{old}} + \operatorname{clip}(V - V_{\text{old}},\, -\epsilon,\, \epsilon),$$
#
# the loss of one token is half the larger of two squared errors,
#
# $$\tfrac12 \max\big((V - G)^2,\ (V_{\text{clip}} - G)^2\big).$$
#
# Schulman et al. (2017) train the critic on the plain squared error; the maximum comes from the code of
# OpenAI's baselines (Dhariwal et al. 2017) and from there went into most others. Take $V_{\text{old}} =
# 0.5$, $G = 1$, $\epsilon = 0.2$. A value of 0.6 is within the range: $\tfrac12 \cdot 0.4^2 = 0.08$. At 0.9
# the clipped value is 0.7 and its error 0.3 the larger one: $\tfrac12 \cdot 0.3^2 = 0.045$ instead of 0.005.
# At 0.1 the clipped value is 0.3, its error the *smaller* one, and nothing changes.

# %%
def value_loss_by_cases(value, old, target, clip):
    nearer = abs(value - target) < abs(old - target)  # it moved toward the target
    if nearer and value > old + clip and target > old + clip:
        worst = max(abs(value - target), target - (old + clip))
    elif nearer and value < old - clip and target < old - clip:
        worst = max(abs(value - target), (old - clip) - target)
    else:
        worst = abs(value - target)
    return worst ** 2 / 2


for value in (0.1, 0.5, 0.6, 0.7, 0.9, 1.2, 1.5):
    plain, clipped = (value - 1) ** 2 / 2, value_loss_by_cases(value, 0.5, 1.0, 0.2)
    print(f'V = {value}: plain {plain:.3f}, clipped {clipped:.3f}')

# %% [markdown]
# In words: a value that has moved *toward* its target by more than ε is charged as if it had moved by ε. One
# that moved away pays in full, and so does one that is further beyond the target than the clipped value is
# short of it (here from 1.3 on). As in the policy's objective, the clip never makes the loss smaller.
#
# ## The loss
#
# The mean goes over the kept tokens of all rows. Old values and returns are numbers; gradient flows into the
# current values only, and positions outside the mask may hold anything, as always.

# %%
#@save
def check_value_loss(values, old_values, returns, mask, clip):
    """ValueError unless the four arrays have one shape and clip is positive (infinity: no clip)."""
    check_shapes(values=values, old_values=old_values, returns=returns, mask=mask)
    check_clip(clip)


# %%
#@save
def value_loss(values, old_values, returns, mask, clip):
    """Clipped value loss of PPO (OpenAI baselines' ppo2, Dhariwal et al. 2017), a scalar.

    Half the mean over mask of max((V - G)^2, (V_clip - G)^2), V_clip = V_old + (V - V_old) held to ±clip.
    All arrays [B, T-1]; 0 if nothing is kept. clip is in units of return; infinity gives the squared error.
    No gradient flows into old_values and returns. ValueError for shapes that differ, a clip not above 0, and
    kept values that are not finite.
    """
    check_value_loss(values, old_values, returns, mask, clip)
    values, old, target = (keep_only(x, mask) for x in (values, old_values.detach(), returns.detach()))
    clipped = old + (values - old).clamp(-clip, clip)
    loss = masked_mean(torch.maximum((values - target) ** 2, (clipped - target) ** 2), mask) / 2
    if not loss.isfinite():
        check_kept(mask, values=values, old_values=old_values, returns=returns)
    return loss


# %%
nan = float('nan')
values = torch.tensor([[0.1, 0.6, nan], [0.9, nan, nan]], dtype=torch.float64, requires_grad=True)  # [2, 3]
old, target = torch.full((2, 3), 0.5, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool)
loss = value_loss(values, old, target, mask, clip=0.2)
loss.backward()
print('loss', round(loss.item(), 4), ' by hand', round((0.405 + 0.08 + 0.045) / 3, 4))
print(values.grad + 0.0)

# %% [markdown]
# The gradient is $(V - G)/3$ where the plain error counts (−0.9/3 and −0.4/3), and exactly zero at 0.9: this
# value has done enough for one batch. Against the cases, on random numbers:

# %%
rng = torch.Generator().manual_seed(0)
worst = 0.0
for clip in (0.05, 0.2, 1.0, float('inf')):
    v, old, g = torch.randn(3, 40, 25, generator=rng, dtype=torch.float64)
    mask = torch.rand(40, 25, generator=rng, dtype=torch.float64) < 0.6
    loop = [value_loss_by_cases(v[at].item(), old[at].item(), g[at].item(), clip)
            for at in map(tuple, mask.nonzero().tolist())]
    worst = max(worst, abs(value_loss(v, old, g, mask, clip).item() - sum(loop) / len(loop)))
print('four thousand values agree with the cases:', worst < 1e-12)

# %% [markdown]
# ## The picture
#
# The loss against the value, for the numbers above. On the thick part the slope is zero.

# %%
import matplotlib.pyplot as plt
import pandas as pd

from agentrl.plotting import SPARE_COLORS, save_figure, use_style

use_style()
grid = [i / 50 - 0.2 for i in range(101)]
table = pd.DataFrame({'value': grid, 'squared error': [(v - 1) ** 2 / 2 for v in grid],
                      'clipped': [value_loss_by_cases(v, 0.5, 1.0, 0.2) for v in grid]})
fig, ax = plt.subplots()
ax.plot(grid, table['squared error'], color='#333333', linewidth=1, linestyle=':')
ax.plot(grid, table['clipped'], color=SPARE_COLORS[0])
ax.plot((0.7, 1.3), (0.045, 0.045), color=SPARE_COLORS[0], linewidth=5)
ax.axvspan(0.3, 0.7, color='#E8E8E8', linewidth=0)
ax.text(0.5, 0.5, 'within ε of\nthe old value', ha='center', color='#555555', fontsize='small')
ax.text(1.0, 0.075, 'no gradient here', ha='center', color=SPARE_COLORS[0])
ax.text(1.0, -0.032, 'squared error', ha='center', color='#333333', fontsize='small')
ax.set(xlabel='value now (old value 0.5, return 1, ε = 0.2)', ylabel='loss for one token',
       xlim=(-0.2, 1.8), ylim=(-0.05, 0.75), xticks=(0, 0.3, 0.5, 0.7, 1, 1.3, 1.5))
save_figure(fig, '08_2_clipped_value_loss', table)

# %% [markdown]
# ## What it does to a critic
#
# The range ε is in units of *return*. With verdicts of 0 and 1 a range of 0.2 is wide; with returns of 10 it
# is a brake. A critic of one number starts at 0 and meets a batch whose returns are all $G$. It takes forty
# steps of Adam on each batch, after which the next batch is collected and the old value is renewed.

# %%
def one_number_critic(target, clip, batches=20, steps=40):
    """Values after each batch."""
    value = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    opt, one, path = torch.optim.Adam([value], lr=0.02), torch.ones(1, 1, dtype=torch.float64), []
    for _ in range(batches):
        old = value.detach().clone()
        for _ in range(steps):
            opt.zero_grad()
            value_loss(value, old, target * one, one, clip).backward()
            opt.step()
        path.append(value.item() / target)
    return path


paths = {(f'return {target}', name): one_number_critic(target, clip)
         for target in (1, 10) for name, clip in (('clip 0.2', 0.2), ('no clip', float('inf')))}
pd.DataFrame(paths, index=pd.RangeIndex(1, 21, name='batches')).loc[[1, 2, 5, 10, 20]].round(3)

# %% [markdown]
# The table shows the value as a share of the return. With returns of 1 the clip costs a batch. With returns
# of 10 the critic starts at half the speed, and the free one slows down only near its target. It does not
# stop at the edge of the range either, because Adam carries it on (8.1), or it would start at a quarter.
# Twice the reward, in other words, is another algorithm, unless ε is scaled with it. That is why PPO code
# with this clip tends to scale its returns as well.
#
# Does it help? The argument for it is the one of the policy: no single batch should move the critic far.
# Against it: a slow critic is a biased one, and the policy's update never sees the critic's step but only
# the values from before. Engstrom et al. (2020) found no evidence that it helps, and Andrychowicz et al.
# (2021), who trained many thousands of agents on control tasks, found that it hurts. Our critic is judged in
# section 7.2; we keep the clip as an argument and do not rely on it.
#
# ## What was seen
#
# The clipped loss is never below the squared error: 0.045 against 0.005 for a value that moved from 0.5 to
# 0.9 on its way to 1, where its gradient is exactly zero, and the same 0.405 for one that moved away. With
# returns of 1 a critic of one number was at 0.75 of its target after two batches with the clip and at 0.989
# without. With returns of 10 the shares were 0.081 and 0.156.
#
# **Try it.** Set `clip` to 2 for returns of 10: which column does it equal, and why? Then let the returns
# differ within a batch, half 0 and half 1. Does the clip still bite?
