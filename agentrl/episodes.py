# Made by tools/export.py from notebooks/05_trajectories/05_2_episodes.py. Do not edit: change it there, then `make export`.
# Body: f35600453e6ab921
"""5.2 Keep a record of who wrote each token."""

from dataclasses import dataclass, field

import torch

from agentrl.environment import check_count
from agentrl.tokenizer import BOS, OBS, OBS_END

# 05_trajectories/05_2_episodes, cell 2
OWNER = {'template': 0, 'prompt': 1, 'policy': 2, 'tool': 3}
MAX_CALL_TOKENS = 6                                                     # longer calls are cut, and malformed


# 05_trajectories/05_2_episodes, cell 3
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


# 05_trajectories/05_2_episodes, cell 5
def check_call(call_ids, call_logp):
    """ValueError unless a call has one id or more, and for each a log-probability that is a number."""
    if not len(call_ids) or len(call_ids) != len(call_logp):
        raise ValueError(f'call_ids has {len(call_ids)} ids, call_logp {len(call_logp)} log-probabilities; a call has '
                         'one id or more, and a log-probability for each')
    if any(logp != logp for logp in call_logp):
        raise ValueError(f'call_logp={list(call_logp)} holds NaN; are the weights of the policy finite?')


# 05_trajectories/05_2_episodes, cell 6
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


# 05_trajectories/05_2_episodes, cell 8
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


# 05_trajectories/05_2_episodes, cell 8
def make_trajectory(episode):
    """The trajectory of an episode (of a finished one, if it is to be trained on)."""
    owner = torch.tensor(episode.owner)                                           # [T]
    return Trajectory(
        ids=torch.tensor(episode.ids), action_mask=owner[1:] == OWNER['policy'],
        logp=torch.tensor(episode.logp[1:], dtype=torch.float64), reward=episode.reward, info=episode.info,
        owner=owner, turn=torch.tensor(episode.turn), tok=episode.tok)


# 05_trajectories/05_2_episodes, cell 12
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


# 05_trajectories/05_2_episodes, cell 12
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


# 05_trajectories/05_2_episodes, cell 14
def take_rows(batch, rows):
    """Rows of a batch as a batch of its own, without the columns that are padding in all of them."""
    if not len(batch['length'][rows]):
        raise ValueError('rows is empty; a batch has one row or more')
    spare = batch['ids'].shape[1] - int(batch['length'][rows].max())
    return {name: value[rows][:, :value.shape[1] - spare] if value.dim() == 2 else value[rows]
            for name, value in batch.items()}


# 05_trajectories/05_2_episodes, cell 14
def length_buckets(length, size=32):
    """Row numbers sorted by length and cut into buckets of `size`: length [B] -> list of [<=size]."""
    check_count('size', size)
    return list(length.argsort(stable=True).split(size))
