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
# # 12.1 Observations are inputs, not actions
#
# A single-turn answer has one author. A multi-turn episode mixes tokens that the policy sampled with tokens
# that the world put there, and only the first kind can be credited or blamed. This section measures, on real
# episodes of the RL base, which positions of a trajectory a policy gradient touches, what training on the
# others would do, and how the turn budget changes length and composition.
#
# The questions of this chapter, and the values labelled *book*, are those of chapter 12 of the tutorial book
# on agent RL at agent-rl.tacetai.com. Text, code and measurements are ours; the book's weights and tasks are
# not public, so we compare findings, not digits.
#
# **Time** 10 min. **Assumes** [6.1](../06_policy_gradient/06_1_gradient_and_mask.ipynb),
# [9.2](../09_grpo/09_2_training_loop.ipynb). **Afterwards you can** measure which positions of an episode
# carry gradient, and show that an observation has influence without being trained on.

# %%
import pandas as pd
import torch

from agentrl.base import make_rl_base
from agentrl.episodes import OWNER, collate
from agentrl.gradient import reinforce_loss
from agentrl.model import selected_log_probs
from agentrl.plotting import beside_book, save_table, side_by_side
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats

tok = build_tokenizer(make_tasks('all'))
policy = make_rl_base(tok)

# %% [markdown]
# ## An episode and its authors
#
# Sixteen episodes: two tasks, eight of each. Here is one that used several turns. Point at a token to see its
# log-probability; the underlined ones are the policy's.

# %%
trajs = sample_groups(policy, make_tasks('train')[:2], tok, RLConfig(), torch.Generator().manual_seed(0))
next(traj for traj in trajs if traj.info['n_reads'] and traj.info['submitted'])

# %% [markdown]
# ## Why they drop out
#
# The probability of a trajectory $\tau$ is a product of two kinds of factors, the policy's tokens $a_t$ and
# the environment's observations $o_k$:
#
# $$ p_\theta(\tau) = \prod_t \pi_\theta(a_t \mid h_t)\; \prod_k P(o_k \mid h_k) $$
#
# with $h$ for all that stands before. The environment does not know θ. So in
# $\nabla_\theta \log p_\theta(\tau)$ the second product vanishes (Williams 1992), and the policy gradient is
# a sum over the policy's tokens only. The mask says which these are. Section 6.1 derives it on a problem
# small enough to enumerate.
#
# ## Experiment A: the gradient at each position
#
# We differentiate the policy-gradient loss with respect to the *logits* and count, for each owner, at how
# many predicted positions the gradient is not zero. As advantage we take reward − ½, so that no episode is
# silent.

# %%
def logit_gradient(batch, mask):
    """Size of d loss / d logits at each predicted position: [B, T-1]."""
    logits = policy(batch['ids'][:, :-1])                                         # [B, T-1, V]
    logits.retain_grad()
    logp = selected_log_probs(logits, batch['ids'][:, 1:])
    reinforce_loss(logp, batch['reward'] - 0.5, mask).backward()
    policy.zero_grad()
    return logits.grad.abs().sum(-1)


def count_by_owner(batch, size):
    """Predicted positions, and those where `size` [B, T-1] is not zero, for each owner."""
    owner = batch['owner'][:, 1:]
    return pd.DataFrame([{'arm': name, 'predicted_positions': int((owner == code).sum()),
                          'positions_with_gradient': int(((owner == code) & (size > 0)).sum())}
                         for name, code in OWNER.items()])


batch = collate(trajs, tok.pad_id)
by_owner = count_by_owner(batch, logit_gradient(batch, batch['action_mask']))
by_owner

# %%
table = beside_book(by_owner, '12.1', 'gradient_by_owner')
save_table(table, '12_1_gradient_by_owner')
side_by_side(table)

# %% [markdown]
# Every position of the policy carries gradient, no other does. The counts differ from the book's because our
# prompts and views are worded differently; the pattern is the same.
#
# ## Without the mask
#
# What if one forgets the mask, and treats every token that is not padding as an action? Then all positions
# carry gradient, and the policy is trained to *predict* the environment, up or down as the reward goes. How
# much of the loss is that?

# %%
everything = batch['owner'][:, 1:] >= 0                                           # all but padding
count_by_owner(batch, logit_gradient(batch, everything))

# %%
with torch.no_grad():
    surprise = -selected_log_probs(policy(batch['ids'][:, :-1]), batch['ids'][:, 1:])
owner = batch['owner'][:, 1:]
pd.DataFrame([{'owner': name, 'share of positions': ((owner == code).sum() / everything.sum()).item(),
               'share of -log p': (surprise[owner == code].sum() / surprise[everything].sum()).item()}
              for name, code in OWNER.items()]).round(3)

# %% [markdown]
# Seven in ten positions would not be the policy's, and nearly all of the −log p (all but 0.014 of it) would
# come from text that it never chose: the base was never trained to predict observations and random names, its
# own calls it knows. Such a run spends its gradient on modelling tools.
#
# ## What zero means here
#
# Zero at the logits *of that position*. It does not mean that nothing is learned about observations: the
# hidden states that were computed at tool tokens are read by later policy tokens, and gradient flows back
# into them. Otherwise the policy could not learn to read.

# %%
kept = {}


def keep_embedded(module, args, out):
    out.retain_grad()
    kept['embedded'] = out


hook = policy.tokens.register_forward_hook(keep_embedded)
logit_gradient(batch, batch['action_mask'])
hook.remove()
reach = kept['embedded'].grad.abs().sum(-1)                                       # [B, T-1], inputs
owner_in = batch['owner'][:, :-1]
rows = [{'owner': name, 'input positions': int((owner_in == code).sum()),
         'that receive gradient': int(((owner_in == code) & (reach > 0)).sum())}
        for name, code in OWNER.items()]
pd.DataFrame(rows)

# %% [markdown]
# All inputs are reached but a few of the policy's own: the last token of each row that is shorter than the
# batch, after which nothing was predicted.
#
# ## Experiment B: the turn budget
#
# Now all twenty train tasks, eight episodes each, with 6, 12 and 24 turns. An episode uses the same uniforms
# under each budget, so it is the same episode up to the point where the smaller budget cuts it.

# %%
def budget_row(max_turns):
    """Length and composition of the base's episodes under a turn budget."""
    cfg = RLConfig(max_turns=max_turns)
    trajs = sample_groups(policy, make_tasks('train'), tok, cfg, torch.Generator().manual_seed(1))
    n_predicted = sum(len(traj.ids) - 1 for traj in trajs)
    return {'arm': f'max_turns {max_turns}', 'tokens_per_episode': behavior_stats(trajs)['tokens'],
            'max_tokens': max(len(traj.ids) for traj in trajs),
            'policy_share': sum(int(traj.action_mask.sum()) for traj in trajs) / n_predicted,
            'context_overflow': sum(traj.info['stop'] == 'context' for traj in trajs) / len(trajs)}


budgets = pd.DataFrame([budget_row(max_turns) for max_turns in (6, 12, 24)])
table = beside_book(budgets, '12.1', 'turn_budget_of_base')
save_table(table, '12_1_turn_budget')
side_by_side(table)

# %% [markdown]
# The base submits early, so a larger budget changes the mean little; it is the rare episode that goes on, and
# the maximum, that grow. With 24 turns one episode of the 160 runs out of context. These are properties of
# the *policy*: one that never submits would fill every budget (section 12.7).
#
# ## The exercises of this chapter
#
# Most of the sections that follow end with a function for you to write, and a check that tries it and says in
# words what is wrong. Until you have written it, it raises NotImplementedError. What a check says then is the
# same for all, so it stands here, once; a solved notebook for each lies in
# [solutions](../solutions/s_12_2_telescoping.ipynb).

# %%
#@save exercises
from functools import wraps


def exercise(check):
    """The check of an exercise, which says so if the attempt is not written yet or returns nothing."""
    class NothingReturned(Exception):
        pass

    @wraps(check)
    def checked(attempt):
        def answer(*args):
            if (given := attempt(*args)) is None:
                raise NothingReturned
            return given

        try:
            return check(answer)
        except NotImplementedError:
            return 'not written yet: replace the line that raises, then run this cell again'
        except NothingReturned:
            return 'your function gave None: does each way through it end with `return`?'

    return checked


# %%
@exercise
def check_double(attempt):
    """'right' if the attempt doubles a number, else what is wrong."""
    return 'right' if attempt(2) == 4 else f'the double of 2 is not {attempt(2)!r}'


def my_double(x):
    raise NotImplementedError


print(check_double(my_double))
print(check_double(lambda x: None))
print(check_double(lambda x: x + 1))
print(check_double(lambda x: x + x))

# %% [markdown]
# ## What was seen
#
# All 166 positions of the policy carry gradient, and none of the 421 others. Without the mask the others
# would make up all but 0.014 of the −log p. Zero at a position's logits is not zero influence: all 257 tool
# tokens receive gradient through what the policy wrote after reading them. From 6 to 24 turns the mean length
# grows from 37.7 to 41.2 tokens and the maximum from 137 to 251, the policy's share stays at 0.29, and
# overflow appears only at 24, in 0.006 of the episodes. Each of the book's findings of this section is
# seen here; but the overflow is one episode, and over ten streams section 12.9 leaves it undecided.
#
# The same findings with intervals and one rule for all: [section 12.9](12_9_what_holds.ipynb).
#
# **Try it.** Set `temperature=2.0` in the configuration of `budget_row`. What happens to length and overflow,
# and why does the policy's share change?
