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
# # 5.2 Keep a record of who wrote each token
#
# A multi-turn episode is one row of tokens with several authors: the prompt, the policy, the tools, and the
# template between them. Only the policy's tokens are actions. This section builds the record that keeps them
# apart, with the very ids that were sampled, the log-probabilities at which they were sampled, and a mask
# over *predicted* positions. All of training rests on it.
#
# **Time** 10 min. **Assumes** [4.3](../04_environment/04_3_bugfix_env.ipynb), [5.1](05_1_token_view.ipynb).
# **Afterwards you can** record an episode with owners, sampled ids and an action mask, put several into a
# batch, and point out its actions.

# %%
#@save episodes
from dataclasses import dataclass, field

import torch

from agentrl.environment import check_count
from agentrl.tokenizer import BOS, OBS, OBS_END

# %% [markdown]
# ## Owners
#
# Every token has an owner and a turn. The prompt has turn −1; call k and the observation that answers it have
# turn k.

# %%
#@save
OWNER = {'template': 0, 'prompt': 1, 'policy': 2, 'tool': 3}
MAX_CALL_TOKENS = 6                                                     # longer calls are cut, and malformed

# %%
#@save
class TokenRow:
    """A growing row of tokens: ids, and owner, turn and log-probability (0 unless the policy's) of each."""

    def __init__(self):
        self.ids, self.owner, self.turn, self.logp = [], [], [], []

    def append(self, turn, *parts):
        """Append the tokens of a turn, given as pairs (owner, ids)."""
        for owner, ids in parts:
            self.ids += ids
            self.owner += [OWNER[owner]] * len(ids)
            self.turn += [turn] * len(ids)
            self.logp += [0.0] * len(ids)


# %%
row = TokenRow()
row.append(-1, ('template', [1]), ('prompt', [60, 61]))
row.append(0, ('policy', [2, 9, 3]))
print(row.ids, row.owner, row.turn)

# %% [markdown]
# ## An episode that grows
#
# `Episode` joins an environment, which speaks text, to a policy, which speaks ids. `act` takes the ids of a
# call, keeps them as they are (they are never encoded again from text), lets the environment answer, and
# appends the answer.
#
# An episode whose context cannot hold another call is cut, with stop `context`. An observation that fills the
# context exactly is kept. After the last call nothing is appended: nothing would be conditioned on it.
# A call without ids, or with another number of log-probabilities than ids, is refused before anything is
# written: all log-probabilities behind it would stand beside the wrong token.

# %%
#@save
def check_call(call_ids, call_logp):
    """ValueError unless a call has one id or more, and for each a log-probability that is a number."""
    if not len(call_ids) or len(call_ids) != len(call_logp):
        raise ValueError(f'call_ids has {len(call_ids)} ids, call_logp {len(call_logp)} log-probabilities; a call has '
                         'one id or more, and a log-probability for each')
    if any(logp != logp for logp in call_logp):
        raise ValueError(f'call_logp={list(call_logp)} holds NaN; are the weights of the policy finite?')


# %%
#@save
class Episode(TokenRow):
    """One running episode: the row of its tokens, its calls as text (`actions`), reward, info and `done`."""

    def __init__(self, env, task, tok, max_turns, max_len):
        super().__init__()
        self.env, self.tok, self.max_len = env, tok, max_len
        issue, self.info = env.reset(options={'task': task, 'max_turns': max_turns})
        self.actions, self.reward, self.done = [], 0.0, False
        self.append(-1, ('template', tok.encode(BOS)), ('prompt', tok.encode(issue)))
        if (needed := len(self.ids) + MAX_CALL_TOKENS) > max_len:
            raise ValueError(f'max_len={max_len} is too short for a prompt and one call; '
                             f'use at least {needed}')

    def act(self, call_ids, call_logp):
        """Make the call of these ids, sampled at these log-probabilities; append the environment's answer.

        ValueError for an empty call, lengths that differ, ids without a word and a log-probability that is NaN.
        """
        if self.done:
            raise RuntimeError(f"the episode has ended ({self.info['stop']}); start a new Episode")
        check_call(call_ids, call_logp)
        text, turn = self.tok.decode(call_ids), len(self.actions)
        self.append(turn, ('policy', list(call_ids)))
        self.logp[len(self.logp) - len(call_ids):] = call_logp
        self.actions.append(text)
        observation, reward, terminated, truncated, self.info = self.env.step(text)
        self.reward += reward
        self.done = terminated or truncated
        if not self.done:
            self.observe(self.tok.encode(observation), turn)

    def observe(self, ids, turn):
        """Append an observation if it fits; cut the episode if no further call fits."""
        if len(self.ids) + len(ids) + 2 <= self.max_len:
            start, end = self.tok.encode(OBS), self.tok.encode(OBS_END)
            self.append(turn, ('template', start), ('tool', ids), ('template', end))
            if len(self.ids) + MAX_CALL_TOKENS <= self.max_len:
                return
        self.info = self.env.get_wrapper_attr('cut')('context')
        self.done = True


# %%
from agentrl.environment import EditBudgetEnv
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
episode = Episode(EditBudgetEnv(), make_tasks()[1], tok, max_turns=6, max_len=256)
for call in ('read', 'edit fix_boundary', 'submit'):
    ids = tok.encode(f'<call> {call} </call>')
    episode.act(ids, [-0.1] * len(ids))
print(tok.decode(episode.ids))
print(episode.actions, episode.reward, episode.done)

# %% [markdown]
# ## A trajectory for training
#
# A model predicts token t+1 from the tokens up to t, so a row of T tokens has T−1 predicted positions, and
# column t of `action_mask` and `logp` speaks of token t+1. The mask is true exactly where the policy wrote
# the token, *including* the token that ends the call: to stop is a decision like any other, and without
# credit for it a policy never learns when to.

# %%
#@save
@dataclass
class Trajectory:
    """A finished episode: ids, owner, turn [T]; action_mask, logp (at sampling) [T-1]; reward and info."""
    ids: torch.Tensor
    action_mask: torch.Tensor
    logp: torch.Tensor
    reward: float
    info: dict
    owner: torch.Tensor
    turn: torch.Tensor
    tok: object = field(default=None, compare=False)

    def view(self):
        """What `agentrl.display` draws: words, owners, turns, mask, log-probabilities."""
        words = [self.tok.itos[i] for i in self.ids.tolist()]
        return words, self.owner.tolist(), self.turn.tolist(), self.action_mask.tolist(), self.logp.tolist()

    def _repr_html_(self):
        from agentrl.display import tokens_html
        return tokens_html(*self.view())

    def __repr__(self):
        from agentrl.display import tokens_text
        return tokens_text(*self.view())


def make_trajectory(episode):
    """The trajectory of an episode (of a finished one, if it is to be trained on)."""
    owner = torch.tensor(episode.owner)                                           # [T]
    return Trajectory(
        ids=torch.tensor(episode.ids), action_mask=owner[1:] == OWNER['policy'],
        logp=torch.tensor(episode.logp[1:], dtype=torch.float64), reward=episode.reward, info=episode.info,
        owner=owner, turn=torch.tensor(episode.turn), tok=episode.tok)


# %% [markdown]
# The trajectory shows itself, coloured by owner; point at a token to see its turn, its mask and its
# log-probability. In a terminal the same object prints as text.

# %%
trajectory = make_trajectory(episode)
trajectory

# %%
print(trajectory)

# %% [markdown]
# The mask by hand: the policy wrote 3 + 4 + 3 tokens in this episode.

# %%
kept = trajectory.ids[1:][trajectory.action_mask]
print(int(trajectory.action_mask.sum()), 'kept:', tok.decode(kept.tolist()))

# %% [markdown]
# ## A batch
#
# Rows of unequal length are padded at the right. Padding has mask 0, owner −1 and turn −1, so no statistic
# can count it.

# %%
#@save
def pad_rows(rows, width, value):
    """Stack 1-D tensors into [B, width], filled with `value` at the right.

    ValueError if there is no row or one is longer.
    """
    if not rows:
        raise ValueError('rows is empty; a batch has one row or more')
    if (longest := max(len(row) for row in rows)) > width:
        raise ValueError(f'a row of {longest} does not fit into width={width}')
    out = rows[0].new_full((len(rows), width), value)
    for padded, row in zip(out, rows, strict=True):
        padded[:len(row)] = row
    return out


def collate(trajs, pad_id):
    """Trajectories as a batch: ids, owner, turn [B, T]; action_mask, logp [B, T-1]; reward, length [B]."""
    if not trajs:
        raise ValueError('trajs is empty; a batch has one trajectory or more')
    width = max(len(traj.ids) for traj in trajs)
    return {
        'ids': pad_rows([traj.ids for traj in trajs], width, pad_id),
        'owner': pad_rows([traj.owner for traj in trajs], width, -1),
        'turn': pad_rows([traj.turn for traj in trajs], width, -1),
        'action_mask': pad_rows([traj.action_mask for traj in trajs], width - 1, False),
        'logp': pad_rows([traj.logp for traj in trajs], width - 1, 0.0),
        'reward': torch.tensor([traj.reward for traj in trajs], dtype=torch.float64),
        'length': torch.tensor([len(traj.ids) for traj in trajs]),
    }


# %%
short = Episode(EditBudgetEnv(), make_tasks()[2], tok, max_turns=6, max_len=256)
short.act(tok.encode('<call> submit </call>'), [-0.7, -1.2, 0.0])
batch = collate([trajectory, make_trajectory(short)], tok.pad_id)
for name, value in batch.items():
    print(f'{name:12} {list(value.shape)}')
print(batch['action_mask'].sum(1).tolist(), 'actions, rewards', batch['reward'].tolist())

# %% [markdown]
# ## Buckets of similar length
#
# Episodes end when they like, so a batch may hold rows of 10 and of 200 tokens. `length_buckets` sorts the
# rows and cuts the batch into pieces, each padded only to its own longest row. Sums over a batch may be
# taken piece by piece; that this leaves the gradient as it was is the point of section 6.2.

# %%
#@save
def take_rows(batch, rows):
    """Rows of a batch as a batch of its own, without the columns that are padding in all of them."""
    if not len(batch['length'][rows]):
        raise ValueError('rows is empty; a batch has one row or more')
    spare = batch['ids'].shape[1] - int(batch['length'][rows].max())
    return {name: value[rows][:, :value.shape[1] - spare] if value.dim() == 2 else value[rows]
            for name, value in batch.items()}


def length_buckets(length, size=32):
    """Row numbers sorted by length and cut into buckets of `size`: length [B] -> list of [<=size]."""
    check_count('size', size)
    return list(length.argsort(stable=True).split(size))


# %%
for rows in length_buckets(batch['length'], size=1):
    piece = take_rows(batch, rows)
    print(rows.tolist(), {name: list(value.shape) for name, value in piece.items() if value.dim() == 2})

# %% [markdown]
# ## The edge of the context
#
# How long must the context be for this episode's first observation to be kept, and for a second call to fit?
# We try the shortest context that is allowed, and a length on either side of both edges. The prompt has 7
# tokens, the call 3, the observation 27.

# %%
import pandas as pd

rows = []
for max_len in (13, 36, 37, 42, 43):
    edge = Episode(EditBudgetEnv(), make_tasks()[1], tok, max_turns=6, max_len=max_len)
    edge.act(tok.encode('<call> read </call>'), [0.0] * 3)
    rows.append((max_len, len(edge.ids), edge.done, edge.info['stop'] or 'running'))
pd.DataFrame(rows, columns=['max_len', 'tokens', 'done', 'stop'])

# %% [markdown]
# ## What was seen
#
# An episode of 47 tokens with 10 actions; a batch in which padding has no owner; and a context of 37 tokens
# that an observation fills to the last place. With 43 a second call fits.
#
# **Try it.** Make `Episode` write an observation after the last call too. Which numbers of this section
# change, and does any later policy token see it?
