# Made by tools/export.py from notebooks/07_advantages/07_5_continuations.py. Do not edit: change it there, then `make export`.
# Body: 2a6eb124c04abdc4
"""7.5 Ask what a state is worth by playing on from it."""

import copy

import torch

from agentrl.environment import check_count
from agentrl.episodes import OWNER, Episode
from agentrl.sampling import run_episodes


# 07_advantages/07_5_continuations, cell 4
def copy_episode(episode):
    """A copy of a running Episode, its environment included; either can go on without the other.

    ValueError if the environment is wrapped: what a wrapper keeps (a log, say) would be shared.
    """
    if episode.env is not episode.env.unwrapped:
        raise ValueError(f'the environment is wrapped in {type(episode.env).__name__}; '
                         'snapshots are of bare environments: make the Episode with env.unwrapped')
    twin = copy.copy(episode)
    for name in ('ids', 'owner', 'turn', 'logp', 'actions'):
        setattr(twin, name, list(getattr(episode, name)))
    twin.env = copy.copy(episode.env)
    twin.env.info = dict(episode.env.info)
    return twin


# 07_advantages/07_5_continuations, cell 6
def snapshots(traj, env, task, max_turns, max_len=256):
    """Episodes before each of the K calls of a trajectory and after the last, by acting it again: K + 1.

    ValueError if the same calls do not lead to the same tokens (another task or environment).
    """
    episode = Episode(env, task, traj.tok, max_turns, max_len)
    cuts = [copy_episode(episode)]
    for k in range(traj.info['n_turns']):
        call = (traj.owner == OWNER['policy']) & (traj.turn == k)                             # [T]
        episode.act(traj.ids[call].tolist(), traj.logp[call[1:]].tolist())
        cuts.append(copy_episode(episode))
    if episode.ids != traj.ids.tolist():
        raise ValueError('the calls of this trajectory lead to other tokens here; give the task (with its '
                         'names), the kind of environment, max_turns and max_len that it was sampled with')
    return cuts


# 07_advantages/07_5_continuations, cell 8
class SharedReader:
    """Logits for the next token from a key/value cache in which rows that have read the same are one."""

    def __init__(self, model, n_rows):
        self.model, self.cache, self.place = model, model.empty_cache(1), [0] * n_rows

    def next_logits(self, new_ids):
        """Read {row: new ids}; logits [R, V] after the last token of each row. Others may be forgotten."""
        branches = {}                                                   # (place before, new ids): place after
        for row, ids in new_ids.items():
            self.place[row] = branches.setdefault((self.place[row], tuple(ids)), len(branches))
        parents = [parent for parent, _ in branches]
        if parents != list(range(len(self.cache.lengths))):
            self.cache = self.cache.select(torch.tensor(parents))
        logits, self.cache = self.model.extend([list(ids) for _, ids in branches], self.cache)
        return logits[[self.place[row] for row in new_ids]]


# 07_advantages/07_5_continuations, cell 9
def continue_episodes(policy, starts, n, generator, temperature=1.0, reader=SharedReader):
    """Play on from each start to the end, n times: list (a start each) of lists of finished Episodes.

    Each continuation owns a row of uniforms. The starts stay as they are; one that has ended already has
    nothing to add, and its continuations are copies of it. ValueError for n below 1.
    """
    check_count('n', n)
    episodes = [copy_episode(episode) for episode in starts for _ in range(n)]
    noise = torch.rand(len(episodes), policy.max_len, generator=generator, dtype=torch.float64)
    running = [n for n, episode in enumerate(episodes) if not episode.done]
    run_episodes(reader(policy, len(running)), [episodes[n] for n in running], temperature, noise[running])
    return [episodes[first:first + n] for first in range(0, len(episodes), n)]


# 07_advantages/07_5_continuations, cell 11
def continuation_returns(starts, continued):
    """What each continuation earned after its start: [S, n], float64."""
    return torch.tensor([[episode.reward - start.reward for episode in episodes]
                         for start, episodes in zip(starts, continued, strict=True)], dtype=torch.float64)


# 07_advantages/07_5_continuations, cell 11
def mean_and_error(returns):
    """Estimated value of each start and its standard error, [S] each, of finite returns [S, n] with n >= 2."""
    if returns.dim() != 2 or not len(returns) or returns.shape[1] < 2:
        raise ValueError(f'returns have shape {list(returns.shape)}; an error needs 2 or more of each start')
    if not returns.isfinite().all():
        raise ValueError(f'returns hold {returns[~returns.isfinite()][0].item()}; all must be finite')
    return returns.mean(1), returns.std(1) / returns.shape[1] ** 0.5


# 07_advantages/07_5_continuations, cell 14
def call_advantages(rewards, values):
    """A_k = r_k + V(s_{k+1}) - V(s_k) of the K calls of an episode: rewards [K], values [K + 1] -> [K]."""
    if rewards.dim() != 1 or values.shape != (len(rewards) + 1,):
        raise ValueError(f'rewards have shape {list(rewards.shape)}, values {list(values.shape)}; allowed: [K] and '
                         '[K + 1], a value before each call and one after the last')
    for name, x in (('rewards', rewards), ('values', values)):
        if not x.isfinite().all():
            raise ValueError(f'{name} hold {x[~x.isfinite()][0].item()}; all must be finite')
    return rewards + values[1:] - values[:-1]
