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
# # 5.3 Sample many episodes in lockstep, and get the same tokens whatever the batch
#
# One episode at a time wastes the machine; a batch of episodes makes them depend on each other unless one is
# careful. This section samples in batches such that an episode's tokens depend on its task, the policy, and
# its own row of random numbers, and on nothing else. We write it twice, with a full forward pass for every
# token and with the cache of section 3.2, and see the same tokens come out.
#
# **Time** 10 min. **Assumes** [3.2](../03_model/03_2_tiny_agent.ipynb), [5.2](05_2_episodes.ipynb).
# **Afterwards you can** sample a batch in which each episode depends on its own random numbers only, and
# test that by changing its company.

# %%
#@save sampling
import torch

from agentrl.environment import check_count, make_env
from agentrl.episodes import MAX_CALL_TOKENS, Episode, make_trajectory
from agentrl.model import check_positive, selected_log_probs
from agentrl.tasks import randomize_names

# %% [markdown]
# ## One token from one uniform
#
# `torch.multinomial` draws from a generator that all rows share, so one finished row would shift the luck of
# all others. We use the inverse of the cumulative distribution instead: with $u$ uniform on $[0, 1)$, take
# the first token whose cumulative probability exceeds $u$. The returned log-probability is that of the
# distribution we sampled from, *after* the temperature. Logits that are not numbers would give the first token
# of the vocabulary each time, so they are refused; so is one uniform for several rows.

# %%
#@save
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


# %%
probs = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
for u in (0.0, 0.49, 0.5, 0.74, 0.75, 0.99):
    token, logp = sample_next(probs.log(), 1.0, torch.tensor([u], dtype=torch.float64))
    print(u, '->', token.item(), round(logp.exp().item(), 3))

# %% [markdown]
# Over many uniforms the tokens appear as often as they should, at temperature 1 and, with the distribution
# squared and normalised, at temperature 0.5.

# %%
rng = torch.Generator().manual_seed(0)
noise = torch.rand(20_000, generator=rng, dtype=torch.float64)
for temperature in (1.0, 0.5):
    tokens, _ = sample_next(probs.log().expand(20_000, 3), temperature, noise)
    expected = (probs ** (1 / temperature) / (probs ** (1 / temperature)).sum())[0]
    shares = tokens.bincount().double() / 20_000
    print(temperature, shares.round(decimals=2).tolist(), 'expected', expected.round(decimals=2).tolist())

# %% [markdown]
# ## What reads the context
#
# The loop below needs one thing of a model: "these rows have new tokens; what comes next?" We call it a
# *reader*. The plain one keeps nothing but the ids and runs a full forward pass of all rows, padded, for
# every single token.

# %%
#@save
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


# %% [markdown]
# The cached one feeds only the new tokens. Once a third of its rows has ended, it drops them from the cache:
# less often would carry dead rows along, more often would copy the cache for each of them.

# %%
#@save
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


# %% [markdown]
# ## The lockstep loop
#
# In each round every running episode samples one token. An episode whose call has just ended lets its
# environment answer at once, and in the next round its reader gets the observation together with the end of
# the call. Uniform number n of an episode's row is used for its n-th sampled token, so two runs of an episode
# in different company, or in two variants of an environment, use the same luck.

# %%
#@save
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


# %% [markdown]
# With the table of uniforms drawn once, [episodes × context], a rollout is complete. `reader` decides between
# the two ways; the result does not depend on it.

# %%
#@save
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


# %% [markdown]
# ## Do they agree?
#
# An untrained model writes rubbish: calls of six tokens, unless `</call>` comes up by chance, all of them
# malformed, with every word about equally likely, so that a small error in the logits would soon pick another
# word. Section 5.5 repeats the comparison with a policy that makes real calls. We compare ids, and
# log-probabilities to rounding.

# %%
from agentrl.environment import EditBudgetEnv
from agentrl.model import TinyAgent
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tasks = make_tasks('train')[:8]
tok = build_tokenizer(make_tasks('all'))
model = TinyAgent(len(tok))


def sample(reader, order=range(8)):
    """Rollouts of the eight tasks with the batch in the given order, each with its own row of uniforms."""
    episodes = [Episode(EditBudgetEnv(), tasks[n], tok, 6, 256) for n in order]
    noise = torch.rand(8, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    run_episodes(reader(model, 8), episodes, 1.0, noise[list(order)])
    return {n: make_trajectory(episode) for n, episode in zip(order, episodes, strict=True)}


def same(a, b):
    """Equal ids, and log-probabilities within 1e-12."""
    return all(torch.equal(a[n].ids, b[n].ids) and torch.allclose(a[n].logp, b[n].logp, rtol=0, atol=1e-12)
               for n in a)


plain, cached = sample(PlainReader), sample(CachedReader)
print('tokens:', [len(plain[n].ids) for n in plain])
print('plain and cached agree:', same(plain, cached))
print('another order agrees:', same(plain, sample(CachedReader, order=[5, 2, 7, 0, 1, 6, 3, 4])))

# %%
cached[0]

# %% [markdown]
# ## Groups and steps
#
# Training wants several episodes of the same task, a *group*, to compare them with each other. Every episode
# gets its own names. A training step draws a few tasks without replacement; an evaluation takes all of them.

# %%
#@save
def copy_tasks(tasks, n):
    """Each of `tasks` `n` times, copies side by side; ValueError for no task, and for n below 1."""
    if not tasks:
        raise ValueError('tasks is empty; give one task or more')
    return [task for task in tasks for _ in range(check_count('n', n))]


def sample_groups(policy, tasks, tok, cfg, generator, env_factory=make_env, n=None, reader=CachedReader):
    """`n` (default cfg.group_size) episodes of every task, groups contiguous: list of Trajectory.

    Each episode gets new names unless `cfg.fresh_names` is False (section 9.4 shows why one wants them new).
    """
    copies = copy_tasks(tasks, cfg.group_size if n is None else n)
    named = [randomize_names(task, generator) for task in copies] if cfg.fresh_names else copies
    envs = [env_factory(cfg) for _ in named]
    return rollout_batch(policy, envs, named, tok, cfg.max_turns, cfg.temperature, generator, reader)


def draw_tasks(tasks, cfg, generator):
    """`cfg.prompts_per_step` of `tasks`, drawn without replacement; ValueError if there are fewer."""
    if cfg.prompts_per_step > len(tasks):
        raise ValueError(f'prompts_per_step={cfg.prompts_per_step} is more than '
                         f'the {len(tasks)} tasks there are')
    picks = torch.randperm(len(tasks), generator=generator)[:cfg.prompts_per_step].tolist()
    return [tasks[n] for n in picks]


def sample_step(policy, tasks, tok, cfg, generator, env_factory=make_env, reader=CachedReader):
    """Groups of `cfg.prompts_per_step` tasks drawn without replacement: list of Trajectory."""
    picked = draw_tasks(tasks, cfg, generator)
    return sample_groups(policy, picked, tok, cfg, generator, env_factory, reader=reader)


# %% [markdown]
# ## What was seen
#
# A full forward pass for every token and a cache that reads each token once give the same eight episodes, in
# any order. Randomness belongs to the episode, not to the batch.
#
# **Try it.** Replace `sample_next` by `torch.multinomial` with a shared generator and run the cell of the
# comparisons again.
