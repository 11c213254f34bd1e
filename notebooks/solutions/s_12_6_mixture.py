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
# # 12.6 Solution: how much of the loss is single-turn?
#
# The exercise of section 12.6 asks for the share of the loss that the single-turn episodes of a mixture get,
# from nothing but the numbers of policy tokens, under each aggregation of section 6.2; and for a prediction
# of what `seq_mean` does to the two pass rates. Here is one function, its check, and the runs that answer
# the second question.
#
# **Time** 5 min. **Assumes** [12.6](../12_multi_turn/12_6_mixtures.ipynb). **Afterwards you can** compute
# the share of an episode under each mean from its tokens alone, and hold a prediction against stored runs.

# %%
import pandas as pd

from agentrl.arms import SEEDS, run_study
from agentrl.mixture import MIXTURE, check_single_share
from agentrl.plotting import mean_interval

# %% [markdown]
# ## The share
#
# Write down what one episode of $L$ policy tokens weighs. Under `token_mean` and `seq_mean_token_sum` every
# token weighs the same, so the episode weighs $L$, up to a factor that cancels in a share. Under
# `seq_mean_token_mean` each token weighs $1/L$, so the episode weighs 1.

# %%
def my_single_share(lengths, single, mode):
    """Share of the loss on single-turn episodes: lengths [B], single [B] of bools, mode of section 6.2."""
    weighs = [1 if mode == 'seq_mean_token_mean' else length for length in lengths]
    return sum(weight for weight, one in zip(weighs, single, strict=True) if one) / sum(weighs)


print(check_single_share(my_single_share))
for mode in ('token_mean', 'seq_mean_token_mean'):
    print(mode, my_single_share([4] * 32 + [12] * 32, [True] * 32 + [False] * 32, mode))

# %% [markdown]
# With answers of 4 and episodes of 12 tokens, half of the episodes get a quarter of the loss under
# `token_mean`, and half of it under `seq_mean_token_mean`.
#
# ## The prediction, and the runs
#
# The prediction: more weight, so the single-turn pass rate should rise, and multi-turn should pay. The
# stored runs of section 12.6, ten seeds; `difference` is `seq_mean` minus `token_mean`, seed by seed.

# %%
TWO = ['50/50 mixture', 'mixture, seq_mean']
heldout, history = run_study(MIXTURE, TWO, SEEDS)
runs = heldout.pivot(index=['evaluated', 'seed'], columns='arm', values='pass_rate')
runs.assign(difference=runs[TWO[1]] - runs[TWO[0]]).round(3)

# %%
difference = (runs[TWO[1]] - runs[TWO[0]]).groupby('evaluated').agg(mean_interval)
pd.DataFrame(difference.tolist(), index=difference.index, columns=['mean', 'low', 'high']).round(3)

# %% [markdown]
# ## What was seen
#
# The check accepts the function: an episode weighs its tokens or, under `seq_mean_token_mean`, one. The
# prediction is neither confirmed nor refuted: single-turn gains 0.052 on average, with an interval from
# −0.019 to 0.123, and multi-turn does not pay: 0.006 (−0.025 to 0.038). More weight, and ten seeds do
# not show it. A share of the weight is not a share of the signal: the last figure of section 12.6 shows that
# the format which still fails is heard under either mean.
#
# **Try it.** Add an arm with `seq_mean_token_sum` to `MIXTURE_ARMS`. Its shares are those of `token_mean`;
# what does the missing factor change, with Adam and a clipped gradient norm?
