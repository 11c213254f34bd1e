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
# # 14.4 A cut is neither a call nor an end
#
# Limits cut things: a call at its token limit, an episode at its clock. What is left looks like the real
# thing, and code that does not ask how it came about takes a fragment for a decision, a limit for a mistake,
# or a clock for the end of the world. The reason is always there (`finish_reason`, `truncated`), and in each
# exhibit it was thrown away one line too early.
#
# **Time** 10 min. **Assumes** [7.1](../07_advantages/07_1_returns_and_gae.ipynb), [14.1](14_1_masks.ipynb).
# **Afterwards you can** find executed fragments, cuts counted as mistakes, and timeouts taken for ends in
# the records of a run.

# %%
#@save cut_faults
from agentrl.mask_faults import Finding, first_place

# %% [markdown]
# ## Exhibit: the fragment that was executed
#
# **Symptom.** Tool calls that nobody would make; episodes that go on for many turns after their last
# trained token. **Reported** in miles, pull request 2587: a turn that hit the length limit closed the
# training sample, but the agent loop executed the cut-off command and went on. On a run of 6469 episodes
# this tail took more than a fifth of all episode time. Why executing is dangerous as well as wasteful, on a file system
# of four files:


# %%
def delete(files, path):
    """What is left when a path, or a folder with all that is in it, is deleted."""
    return [name for name in files if name != path and not name.startswith(path + '/')]


files = ['build/tmp/a.o', 'build/tmp/b.o', 'build/report', 'notes']
meant, written = 'delete build/tmp', 'delete build'  # cut at a limit of two tokens
for command in (meant, written):
    print(f'{command:18}', delete(files, command.split()[1]))

# %% [markdown]
# A prefix of a command can be a command. In the gym a call ends with its own token, so that a fragment is not
# a call. **The wrong version** is the helpful parser that adds what seems to be missing:

# %%
from agentrl.environment import EditBudgetEnv
from agentrl.tasks import make_tasks

fragment = '<call> edit fix_boundary'  # the limit came before </call>


def fresh_env():
    env = EditBudgetEnv()
    env.reset(options={'task': make_tasks()[1]})
    return env


env = fresh_env()
env.step(fragment + ' </call>')  # WRONG: repaired and executed
print('repaired:', {name: env.info[name] for name in ('n_edits', 'n_invalid', 'stop')})

# %% [markdown]
# ## Exhibit: the fragment that was a mistake
#
# **Symptom.** The share of malformed calls rises with the length of answers, and the policy learns to be
# brief rather than right. **Reported** in tinker-cookbook, pull request 506: a response that reached
# `max_tokens` lost its stop reason, failed to parse, and got the penalty for malformed output. **The wrong
# version** here does not repair, and does not ask either. **The right version** ends the episode with a
# reason of its own: nothing is executed, nothing is counted as malformed.


# %%
#@save
def act_or_cut(env, text, finish_reason):
    """One step of an environment of 4.3, or, for a call that was cut at its limit, the end of the episode."""
    if finish_reason == 'length':
        return '', 0.0, False, True, env.get_wrapper_attr('cut')('length')
    return env.step(text)


# %%
env = fresh_env()
env.step(fragment)  # WRONG: scored as malformed
print('scored:', {name: env.info[name] for name in ('n_edits', 'n_invalid', 'stop')})
info = act_or_cut(fresh_env(), fragment, 'length')[4]
print('right: ', {name: info[name] for name in ('n_edits', 'n_invalid', 'stop')})

# %% [markdown]
# (Our sampler's own limit of six tokens a call is a rule of the *gym*, longer than any call needs to be, and
# counts as malformed by design; 13.4 compares the treatments in training.)
#
# **The check** reads a table with one line a call. It also compares the tokens with the limit, because the
# reason may lie: vLLM issue 58228 reports cut turns that came back as `tool_calls`, 25 in 3600. The price: a
# call that ends by itself exactly at the limit is taken for a cut one. Let the limit be one token more than a
# call may need.

# %%
#@save
CALL_FIELDS = ('finish_reason', 'tokens', 'limit', 'executed', 'invalid')


def check_cut_calls(calls):
    """Calls cut at their limit are neither executed nor counted as malformed, or a Finding.

    calls: a mapping of CALL_FIELDS (and 'row') to sequences, one entry a call; a DataFrame will do.
    """
    lines = list(zip(*(list(calls[name]) for name in CALL_FIELDS), strict=True))
    rows = list(calls['row']) if 'row' in calls else [None] * len(lines)
    cut = [reason == 'length' or tokens >= limit for reason, tokens, limit, *_ in lines]
    relabelled = sum(c and line[0] != 'length' for c, line in zip(cut, lines, strict=True))
    note = f'; {relabelled} of them say another finish_reason' if relabelled else ''
    for field, fault in ((3, 'a cut call was executed'), (4, 'a cut call was scored as malformed')):
        wrong = [n for n, line in enumerate(lines) if cut[n] and line[field]]
        if wrong:
            row = rows[wrong[0]]
            return Finding(
                fault, f'{len(wrong)} of {sum(cut)} cut calls{note}', None if row is None else int(row)
            )
    return None


# %%
import pandas as pd

log = pd.DataFrame({
    'row': [0, 0, 1, 2],
    'finish_reason': ['stop', 'length', 'stop', 'tool_calls'],
    'tokens': [3, 6, 4, 6],
    'limit': 6,
    'executed': False,
    'invalid': False,
})
versions = {
    'executed': log.assign(executed=True),
    'scored': log.assign(invalid=log['tokens'] == 6),
    'right': log.assign(executed=log['tokens'] < 6),
}
for name, version in versions.items():
    print(f'{name:9}', check_cut_calls(version) or 'nothing found')

# %% [markdown]
# ## Exhibit: the clock that was the end of the world
#
# **Symptom.** Values are too low wherever episodes are cut by a clock that the agent cannot see, and the
# agent hurries or gives up. **Reported** in CleanRL, issue 198: PPO treated timeouts as terminations. The
# classic treatment is Pardo et al. 2018. Our row: a task that pays 1 a step for ever, discounted by 0.9, so
# that every state is worth 10. It is cut after three steps. With a perfect critic all advantages must be 0.

# %%
import torch

from agentrl.credit import gae_advantages

mask = torch.ones(1, 3, dtype=torch.bool)
rewards, values = torch.ones(1, 3, dtype=torch.float64), torch.full((1, 3), 10.0, dtype=torch.float64)
final_value = torch.tensor([10.0], dtype=torch.float64)  # the critic, after the cut


def bootstrapped(rewards, final_value, gamma):
    """Rewards with gamma * V of the state after the cut added to the last one, as 7.1 asks for."""
    return torch.cat([rewards[:, :-1], rewards[:, -1:] + gamma * final_value[:, None]], 1)


for name, given in (('wrong', rewards), ('right', bootstrapped(rewards, final_value, 0.9))):
    advantages, returns = gae_advantages(given, values, mask, 0.9, 1.0)
    rounded = [[round(x, 3) + 0.0 for x in row[0].tolist()] for row in (advantages, returns)]
    print(f'{name}: advantages {rounded[0]}, returns {rounded[1]}')

# %% [markdown]
# The wrong version tells a perfect agent that its last steps were worth −9. There is a case in which it is
# right: a turn budget that is part of the task *is* an end, and the return there is the reward and nothing
# more. The agent should then see it. The gym's budget is such a rule, but its text does not say how many turns
# are left (12.7.1): the policy can only count its own calls, and 12.7 has a wrapper that shows the number. Say
# which one you have by what you mark as truncated.
#
# **The check** looks at the last kept token of each row. Its return is the last reward, plus γ times the
# value after the cut if the row was truncated.


# %%
#@save
def check_timeouts(returns, rewards, action_mask, truncated, final_value, gamma):
    """Last returns [B, T-1] of rows marked truncated [B] include gamma * final_value [B], or a Finding.

    rewards [B, T-1] as the environment paid them. final_value: the critic's, of the state after the cut.
    """
    keep = action_mask.bool()
    last = keep & (keep.cumsum(1) == keep.sum(1, keepdim=True))  # [B, T-1]
    found, paid = (x.masked_fill(~last, 0.0).sum(1) for x in (returns, rewards))  # [B]
    bonus = gamma * final_value
    tolerance = 1e-3 * bonus.abs().clamp(min=1.0)
    cut = truncated.bool() & keep.any(1)
    wrong = cut & ((found - paid - bonus).abs() > tolerance)
    if not wrong.any():
        return None
    forgot = int((wrong & ((found - paid).abs() <= tolerance)).sum())
    row = first_place(wrong)['row']
    fault = 'timeouts treated as terminations' if forgot else 'wrong bootstrap after a cut'
    return Finding(
        fault,
        f'{int(wrong.sum())} of {int(cut.sum())} truncated rows, {forgot} without any bootstrap; the first '
        f'ends with {found[row]:.3g}, expected {(paid + bonus)[row]:.3g}',
        row,
    )


# %%
cut = torch.tensor([True])
for name, given in (('wrong', rewards), ('right', bootstrapped(rewards, final_value, 0.9))):
    returns = gae_advantages(given, values, mask, 0.9, 1.0)[1]
    print(f'{name}:', check_timeouts(returns, rewards, mask, cut, final_value, 0.9) or 'nothing found')

# %% [markdown]
# ## What was seen
#
# `delete build/tmp`, cut by one token, deleted three files instead of two. The same fragment of an edit was
# executed by a helpful parser, counted as malformed by a plain one, and neither by ours, which stops with
# reason `length`. A clock that was taken for an end gave a perfect policy advantages down to −9.0; with the
# value after the cut they are 0.0. The check on calls also finds the cut that was labelled otherwise.
#
# **Try it.** Mark a turn budget of the gym as truncated and bootstrap with your critic: what does the agent
# learn about its last turn? 12.3 is the experiment with budgets.
