# Made by tools/export.py from notebooks/05_trajectories/05_3_lockstep_sampler.py. Do not edit: change it there, then `make export`.
# Body: 9db9da2f7b18a01c
"""5.3 Sample many episodes in lockstep, and get the same tokens whatever the batch."""

import torch

from agentrl.environment import check_count, make_env
from agentrl.episodes import MAX_CALL_TOKENS, Episode, make_trajectory
from agentrl.model import check_positive, selected_log_probs
from agentrl.tasks import randomize_names


# 05_trajectories/05_3_lockstep_sampler, cell 2
def sample_next(logits, temperature, noise):
    """One token a row by inverse CDF: logits [B, V], noise [B] in [0, 1) -> ids, log-probabilities [B].

    ValueError for other shapes, noise outside [0, 1), a temperature not above 0, and logits that are NaN.
    """
    check_positive('temperature', temperature)
    if logits.dim() != 2 or not logits.shape[1] or noise.shape != logits.shape[:1]:
        raise ValueError(f'logits have shape {list(logits.shape)}, noise {list(noise.shape)}; allowed: [B, V] and [B]')
    if not ((noise >= 0) & (noise <= 1)).all():
        raise ValueError(f'noise goes from {noise.min().item()} to {noise.max().item()}; allowed: [0, 1)')
    scaled = logits / temperature                                                 # [B, V]
    up_to = scaled.softmax(-1).cumsum(-1)                                         # [B, V]
    if (bad := up_to[:, -1].isnan()).any():
        raise ValueError(f'logits of row {bad.nonzero()[0].item()} give no probabilities: they hold NaN or '
                         'infinity. Are the weights of the policy finite?')
    ids = (up_to <= noise[:, None]).sum(-1).clamp(max=logits.shape[-1] - 1)       # [B]
    return ids, selected_log_probs(scaled, ids)


# 05_trajectories/05_3_lockstep_sampler, cell 5
class PlainReader:
    """Logits for the next token by a full forward pass over everything read so far."""

    def __init__(self, model, n_rows):
        self.model, self.read = model, [[] for _ in range(n_rows)]

    @torch.no_grad()
    def next_logits(self, new_ids):
        """Read {row: new ids}; logits [R, V] after the last token of each of these rows."""
        for row, ids in new_ids.items():
            self.read[row] += ids
        read = [self.read[row] for row in new_ids]
        width = max(map(len, read))
        padded = torch.tensor([ids + [0] * (width - len(ids)) for ids in read])   # [R, T]
        last = torch.tensor([len(ids) - 1 for ids in read])
        return self.model(padded)[torch.arange(len(read)), last]


# 05_trajectories/05_3_lockstep_sampler, cell 6
class CachedReader:
    """Logits for the next token from a key/value cache, which reads each token once."""

    def __init__(self, model, n_rows):
        self.model, self.cache, self.rows = model, model.empty_cache(n_rows), list(range(n_rows))

    def next_logits(self, new_ids):
        """Read {row: new ids}; logits [R, V] after the last token of each row. Others may be forgotten."""
        if len(new_ids) <= len(self.rows) * 2 // 3:
            place = {row: n for n, row in enumerate(self.rows)}
            self.rows = list(new_ids)
            self.cache = self.cache.select(torch.tensor([place[row] for row in self.rows]))
        logits, self.cache = self.model.extend([new_ids.get(row, []) for row in self.rows], self.cache)
        return logits


# 05_trajectories/05_3_lockstep_sampler, cell 7
def run_episodes(reader, episodes, temperature, noise):
    """Run all episodes to their end, one token each a round; noise [B, N] holds a row of uniforms each."""
    if noise.dim() != 2 or len(noise) != len(episodes):
        raise ValueError(f'noise has shape {list(noise.shape)}; allowed: [{len(episodes)}, N], a row per episode')
    running, calls = dict(enumerate(episodes)), [([], []) for _ in episodes]
    n_sampled = [0] * len(episodes)
    new_ids = {row: episode.ids for row, episode in running.items()}
    while running:
        rows = list(running)
        u = noise[rows, [n_sampled[row] for row in rows]]
        ids, logps = sample_next(reader.next_logits(new_ids), temperature, u)
        for row, token, logp in zip(rows, ids.tolist(), logps.tolist(), strict=True):
            n_sampled[row] += 1
            new_ids[row] = add_token(running[row], calls[row], token, logp)
            if running[row].done:
                del running[row], new_ids[row]


# 05_trajectories/05_3_lockstep_sampler, cell 7
def add_token(episode, call, token, logp):
    """Add a sampled token to a call, and make the call if it has ended; returns the ids not read yet."""
    call[0].append(token)
    call[1].append(logp)
    if token != episode.tok.call_end_id and len(call[0]) < MAX_CALL_TOKENS:
        return [token]
    length, n = len(episode.ids), len(call[0])
    episode.act(*call)
    call[0].clear(), call[1].clear()
    return episode.ids[length + n - 1:]


# 05_trajectories/05_3_lockstep_sampler, cell 8
def rollout_batch(model, envs, tasks, tok, max_turns, temperature, generator, reader=CachedReader):
    """One finished episode for each pair of environment and task: list of Trajectory."""
    if len(envs) != len(tasks):
        raise ValueError(f'envs has {len(envs)} environments, tasks {len(tasks)}: one is shorter; give one per task')
    check_positive('temperature', temperature)
    if len(tok) > model.vocab_size:
        raise ValueError(f'the tokenizer has {len(tok)} words but the model only {model.vocab_size}; '
                         'build TinyAgent(len(tok))')
    episodes = [Episode(env, task, tok, max_turns, model.max_len)
                for env, task in zip(envs, tasks, strict=True)]
    noise = torch.rand(len(episodes), model.max_len, generator=generator, dtype=torch.float64)
    run_episodes(reader(model, len(episodes)), episodes, temperature, noise)
    return [make_trajectory(episode) for episode in episodes]


# 05_trajectories/05_3_lockstep_sampler, cell 11
def copy_tasks(tasks, n):
    """Each of `tasks` `n` times, copies side by side; ValueError for no task, and for n below 1."""
    if not tasks:
        raise ValueError('tasks is empty; give one task or more')
    return [task for task in tasks for _ in range(check_count('n', n))]


# 05_trajectories/05_3_lockstep_sampler, cell 11
def sample_groups(policy, tasks, tok, cfg, generator, env_factory=make_env, n=None, reader=CachedReader):
    """`n` (default cfg.group_size) episodes of every task, groups contiguous: list of Trajectory.

    Each episode gets new names unless `cfg.fresh_names` is False (section 9.4 shows why one wants them new).
    """
    copies = copy_tasks(tasks, cfg.group_size if n is None else n)
    named = [randomize_names(task, generator) for task in copies] if cfg.fresh_names else copies
    envs = [env_factory(cfg) for _ in named]
    return rollout_batch(policy, envs, named, tok, cfg.max_turns, cfg.temperature, generator, reader)


# 05_trajectories/05_3_lockstep_sampler, cell 11
def draw_tasks(tasks, cfg, generator):
    """`cfg.prompts_per_step` of `tasks`, drawn without replacement; ValueError if there are fewer."""
    if cfg.prompts_per_step > len(tasks):
        raise ValueError(f'prompts_per_step={cfg.prompts_per_step} is more than '
                         f'the {len(tasks)} tasks there are')
    picks = torch.randperm(len(tasks), generator=generator)[:cfg.prompts_per_step].tolist()
    return [tasks[n] for n in picks]


# 05_trajectories/05_3_lockstep_sampler, cell 11
def sample_step(policy, tasks, tok, cfg, generator, env_factory=make_env, reader=CachedReader):
    """Groups of `cfg.prompts_per_step` tasks drawn without replacement: list of Trajectory."""
    picked = draw_tasks(tasks, cfg, generator)
    return sample_groups(policy, picked, tok, cfg, generator, env_factory, reader=reader)
