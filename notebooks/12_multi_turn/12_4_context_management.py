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
# # 12.4 Context management changes the policy's input
#
# Long episodes do not fit into a window, and each token that is read again costs money. So agents drop, cut
# or summarise what they have seen. That changes the *input* of the policy, and with it what training must
# do: a call has to be scored in the very context in which it was sampled. We build a sampler that takes a
# context policy as an argument, check its laws one by one, and draw what the agent sees under each of them.
#
# **Time** 30 min. **Assumes** [5.2](../05_trajectories/05_2_episodes.ipynb),
# [9.2](../09_grpo/09_2_training_loop.ipynb). **Afterwards you can** write a context policy, show what each
# call sees under it, and test that tokens are scored where they were sampled.

# %%
#@save context
from collections import namedtuple
from dataclasses import dataclass, field
from functools import partial
from os.path import commonprefix

import torch

from agentrl.advantages import group_advantages
from agentrl.environment import check_count, make_env, parse_call
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, Trajectory, collate, make_trajectory
from agentrl.exercises import exercise
from agentrl.gradient import keep_only
from agentrl.sampling import CachedReader, copy_tasks, draw_tasks, sample_next
from agentrl.tasks import infer_op, make_tasks, randomize_names
from agentrl.tokenizer import OBS, OBS_END, build_tokenizer
from agentrl.training import RLConfig, heldout_stats

# %% [markdown]
# ## An episode by hand
#
# Everything that was said stays in the episode's record: ids, and who wrote each token in which turn
# (section 5.2). Here the agent tests, reads and edits; its next call, number 3, is to be sampled. What
# should it see?
# %%
tok = build_tokenizer(make_tasks('all'))
task = make_tasks()[1]
episode = Episode(make_env(RLConfig()), task, tok, max_turns=6, max_len=256)
for call in ('test', 'read', 'edit fix_boundary'):
    ids = tok.encode(f'<call> {call} </call>')
    episode.act(ids, [0.0] * len(ids))
record = (episode.ids, episode.owner, episode.turn)
print(make_trajectory(episode))

# %% [markdown]
# ## Observation masking
#
# Old observations are the cheapest thing to drop: the agent's own calls stay, so it knows what it has done,
# and the words `<obs> </obs>` stay as placeholders, so it knows that there was an answer. `keep_obs` says
# how many of the last turns keep theirs; `None` drops nothing.
#
# Written token by token: before call $k$ the agent sees a token of turn $j < k$ unless a tool wrote it and
# $j < k - \text{keep}$.

# %%
#@save
View = namedtuple('View', 'ids owner turn')  # what a call sees: three rows [T]


def pick(ids, owner, turn, positions):
    """The View of the tokens at some positions of a record (three rows of equal length)."""
    return View(*([int(row[t]) for t in positions] for row in (ids, owner, turn)))


def mask_observations(ids, owner, turn, k, keep_obs=None):
    """View before call k without the tool tokens of turns older than the last `keep_obs` (None: with all)."""
    check_count('k', k, least=0)
    oldest = 0 if keep_obs is None else k - check_count('keep_obs', keep_obs, least=0)
    seen = [t for t, (who, when) in enumerate(zip(owner, turn, strict=True))
            if when < k and (who != OWNER['tool'] or when >= oldest)]
    return pick(ids, owner, turn, seen)


def context_view(ids, owner, turn, k, keep_obs=None):
    """The ids that call k sees under observation masking (`mask_observations`)."""
    return mask_observations(ids, owner, turn, k, keep_obs).ids


# %%
for keep_obs in (None, 2, 1, 0):
    print(f'keep_obs={keep_obs}:', tok.decode(context_view(*record, 3, keep_obs)[7:]))

# %% [markdown]
# With `keep_obs=1` the source is gone by now: the edit was chosen one call ago, when it was still there.
# With 0 the agent never sees an answer at all.
#
# ## Cutting the head of the history
#
# A server that simply drops what no longer fits works on whole turns: the prompt stays, and the oldest turns
# go, calls and all, until the rest fits into a window. What fills the window exactly is kept. Unlike under
# masking, the agent forgets what it has *done*.

# %%
#@save
def cut_head(ids, owner, turn, k, window):
    """View before call k: the prompt, and as many of the last whole turns as fit into `window` tokens."""
    check_count('k', k, least=0)
    prompt = sum(when == -1 for when in turn)
    if check_count('window', window) < prompt:
        raise ValueError(f'window={window} does not hold the prompt; use at least {prompt}')
    first = next(n for n in range(k + 1) if prompt + sum(n <= when < k for when in turn) <= window)
    return pick(ids, owner, turn, [t for t, when in enumerate(turn) if when == -1 or first <= when < k])


# %%
print('tokens of the prompt and of turns 0, 1, 2:', [episode.turn.count(turn) for turn in (-1, 0, 1, 2)])
for window in (52, 51, 44, 43, 14, 13):
    view = cut_head(*record, 3, window)
    print(f'window {window}: {len(view.ids)} tokens, turns {sorted(set(view.turn) - {-1})}')

# %% [markdown]
# The whole record has 52 tokens, and a window of 52 keeps it. One token less costs the whole first turn.
#
# ## A summary
#
# The third way is to write down what mattered. A summariser of real agents is a language model; ours is
# perfect. The words that a `read` showed are replaced by the one edit that a perfect reader would choose,
# `infer_op` of section 2.1, or by `no error` if nothing looks wrong. It acts on `read` observations that are
# older than the last turn: the agent sees the source once, as it is, and from then on the note. All else
# stays as it was.

# %%
#@save
def note_of(words):
    """The note that replaces a source, given as the words that `read` shows."""
    return infer_op(f'def f(a, k):\n    {words}') or 'no error'  # infer_op looks at these words alone


def read_notes(ids, owner, turn, n_turns, tok):
    """{turn: ids of its note} for those of the first `n_turns` turns that were a `read`."""
    def said(who, j):
        return tok.decode([i for i, o, n in zip(ids, owner, turn, strict=True) if (o, n) == (OWNER[who], j)])

    return {j: tok.encode(note_of(said('tool', j))) for j in range(n_turns)
            if parse_call(said('policy', j))[0] == 'read'}


def summarise(ids, owner, turn, k, tok):
    """View before call k in which each `read` observation older than the last turn is a note."""
    notes, view = read_notes(ids, owner, turn, k - 1, tok), View([], [], [])
    for token, who, when in zip(ids, owner, turn, strict=True):
        seen = [token] if when < k else []
        if who == OWNER['tool'] and when in notes:
            seen, notes[when] = notes[when], []  # where the source began
        view.ids.extend(seen), view.owner.extend([who] * len(seen)), view.turn.extend([when] * len(seen))
    return view


# %%
for k in (2, 3):
    print(f'before call {k}:', tok.decode(summarise(*record, k, tok).ids[7:]))

# %% [markdown]
# ## Six contexts by name
#
# A *context policy* is a function of the record and of $k$ that returns what call $k$ sees. It must not look
# at anything else, and at nothing after call $k$ began. So the record, which we keep, says everything that
# any call has seen. Six of them have names in this book. A window of 41 tokens holds the prompt and the
# longest of all `read` turns exactly, and nothing else beside it.

# %%
#@save
CONTEXTS = {
    'full': partial(mask_observations, keep_obs=None),
    'keep 2': partial(mask_observations, keep_obs=2),
    'keep 1': partial(mask_observations, keep_obs=1),
    'keep 0': partial(mask_observations, keep_obs=0),
    'summary': partial(summarise, tok=build_tokenizer(make_tasks('all'))),
    'head cut': partial(cut_head, window=41),
}


# %%
import pandas as pd

lengths = {name: [len(context(*record, k).ids) for k in range(4)] for name, context in CONTEXTS.items()}
pd.DataFrame(lengths, index=[f'tokens seen before call {k}' for k in range(4)]).T

# %% [markdown]
# ## An episode that its view may cut
#
# The episode of section 5.2 ends when its *record* no longer fits. What matters to a model is whether the
# *view* fits, with room for a call. With nothing dropped both rules are the same; with masking an episode
# may go on for long after its record has outgrown the window. As in section 5.2, an observation that fills
# the window exactly is kept, although no call can follow.

# %%
#@save
class ContextEpisode(Episode):
    """An Episode whose calls see a view of the record; it is cut when the view leaves no room for a call."""

    def __init__(self, env, task, tok, max_turns, max_len, context):
        super().__init__(env, task, tok, max_turns, max_len)
        self.context = context

    def next_view(self):
        """What the next call sees."""
        return self.context(self.ids, self.owner, self.turn, len(self.actions))

    def observe(self, ids, turn):
        """Append an observation if the view with it fits; cut the episode if no further call fits."""
        length, start, end = len(self.ids), self.tok.encode(OBS), self.tok.encode(OBS_END)
        self.append(turn, ('template', start), ('tool', ids), ('template', end))
        if (seen := len(self.next_view().ids)) > self.max_len:
            for row in (self.ids, self.owner, self.turn, self.logp):
                del row[length:]
        if seen + MAX_CALL_TOKENS > self.max_len:
            self.info = self.env.get_wrapper_attr('cut')('context')
            self.done = True


# %%
rows = []
for name in ('full', 'keep 1'):
    for max_len in (36, 37, 43, 47, 48, 66, 67, 72, 73):
        edge = ContextEpisode(make_env(RLConfig()), task, tok, 6, max_len, CONTEXTS[name])
        while not edge.done and len(edge.actions) < 2:
            edge.act(tok.encode('<call> read </call>'), [0.0] * 3)
        rows.append((name, max_len, len(edge.actions), len(edge.ids), edge.info['stop'] or 'running'))
pd.DataFrame(rows, columns=['context', 'window', 'calls made', 'tokens in the record', 'stop'])

# %% [markdown]
# Two reads make a record of 67 tokens, kept at a window of 67 but not at 66. To go on, everything in view
# takes a window of 73; with masking the view has 42 tokens, and 48 are enough.
#
# ## A sampler in lockstep by call
#
# The sampler of section 5.3 lets a cache grow with the record. A view may change anywhere, so here each call
# starts with an empty cache and reads its view afresh; then tokens are sampled one by one, for all running
# episodes at once. Uniform number $n$ of an episode's row is used for its $n$-th sampled token, as before.

# %%
#@save
def sample_calls(reader, views, call_end_id, temperature, noise):
    """A call for each view: lists of ids and log-probabilities; noise [R, MAX_CALL_TOKENS] in [0, 1)."""
    calls, new_ids = [([], []) for _ in views], dict(enumerate(views))
    for n in range(MAX_CALL_TOKENS):
        rows = list(new_ids)
        ids, logps = sample_next(reader.next_logits(new_ids), temperature, noise[rows, n])
        for row, token, logp in zip(rows, ids.tolist(), logps.tolist(), strict=True):
            calls[row][0].append(token), calls[row][1].append(logp)
            new_ids[row] = [token]
            if token == call_end_id:
                del new_ids[row]
        if not new_ids:
            break
    return calls


def run_contexts(model, episodes, temperature, noise, reader=CachedReader):
    """Run ContextEpisodes to their end, one call each a round; noise [B, N] holds a row of uniforms each."""
    while running := [row for row, episode in enumerate(episodes) if not episode.done]:
        sampled = [episodes[row].owner.count(OWNER['policy']) for row in running]
        u = torch.stack([noise[row, n:n + MAX_CALL_TOKENS] for row, n in zip(running, sampled, strict=True)])
        views = [episodes[row].next_view().ids for row in running]
        calls = sample_calls(reader(model, len(running)), views, episodes[0].tok.call_end_id, temperature, u)
        for row, call in zip(running, calls, strict=True):
            episodes[row].act(*call)


# %% [markdown]
# ## One call, one sample
#
# For training each call becomes a sample of its own: its view, then the call. Mask and log-probabilities
# stand on the call's tokens alone; earlier calls in the view are input here, they are trained in their own
# samples. The whole episode, needed for statistics, carries its samples.

# %%
#@save
@dataclass(repr=False)
class ContextTrajectory(Trajectory):
    """A finished episode (the whole record) and its calls as samples, each in the context that it saw."""
    samples: list = field(default_factory=list, compare=False)


def call_sample(traj, k, context):
    """Call k of a trajectory as one of its own: what it saw, then the call, which alone is trained on."""
    rows = [row.tolist() for row in (traj.ids, traj.owner, traj.turn)]
    view, called = context(*rows, k), (traj.owner == OWNER['policy']) & (traj.turn == k)  # [T]
    call = pick(*rows, called.nonzero()[:, 0].tolist())
    ids, owner, turn = (torch.tensor(seen + said) for seen, said in zip(view, call, strict=True))
    mask = torch.arange(len(ids)) >= len(view.ids)  # [S]
    logp = torch.zeros(len(ids), dtype=torch.float64).masked_scatter(mask, traj.logp[called[1:]])
    return Trajectory(ids, mask[1:], logp[1:], traj.reward, traj.info, owner, turn, traj.tok)


def with_samples(episode, first=0):
    """The trajectory of a finished ContextEpisode, with its calls from number `first` on as samples."""
    traj = make_trajectory(episode)
    samples = [call_sample(traj, k, episode.context) for k in range(first, traj.info['n_turns'])]
    return ContextTrajectory(traj.ids, traj.action_mask, traj.logp, traj.reward, traj.info, traj.owner, traj.turn,
                             traj.tok, samples)


# %%
#@save
def context_rollout_batch(model, envs, tasks, tok, max_turns, temperature, generator,
                          context=CONTEXTS['full'], reader=CachedReader):
    """One finished episode for each pair of environment and task, sampled under a context policy."""
    if len(tok) > model.vocab_size:
        raise ValueError(f'the tokenizer has {len(tok)} words but the model only {model.vocab_size}; '
                         'build TinyAgent(len(tok))')
    episodes = [ContextEpisode(env, task, tok, max_turns, model.max_len, context)
                for env, task in zip(envs, tasks, strict=True)]
    more = max(0, (max_turns + 1) * MAX_CALL_TOKENS - model.max_len)  # calls may outnumber the window
    noise = torch.cat([torch.rand(len(episodes), n, generator=generator, dtype=torch.float64)
                       for n in (model.max_len, more)], 1)  # the first as in rollout_batch
    run_contexts(model, episodes, temperature, noise, reader)
    return [with_samples(episode) for episode in episodes]


# %% [markdown]
# ## Law 1: with nothing dropped, nothing changes
#
# Sixteen episodes of the RL base, under the same generator, from the sampler of section 5.3 and from this
# one.

# %%
from agentrl.base import make_rl_base
from agentrl.sampling import rollout_batch
from agentrl.tokenizer import TOOLS

policy, tasks = make_rl_base(tok), make_tasks('train')[:16]


def roll(sampler, seed=0, **more):
    rng = torch.Generator().manual_seed(seed)
    return sampler(policy, [make_env(RLConfig()) for _ in tasks], tasks, tok, 6, 1.0, rng, **more)


default, trajs = roll(rollout_batch), roll(context_rollout_batch)
print('episodes:', len(trajs), ' calls:', sum(len(traj.samples) for traj in trajs))
print('same tokens:', all(torch.equal(a.ids, b.ids) for a, b in zip(default, trajs, strict=True)))
difference = max((a.logp - b.logp).abs().max().item() for a, b in zip(default, trajs, strict=True))
print('log-probabilities differ by less than 1e-12:', difference < 1e-12)

# %% [markdown]
# The book reports the same for its sampler: 16 episodes, 61 calls, identical, with a difference of 2.1e-06
# in single precision.

# %% [markdown]
# ## Figure 12.3: what a call sees
#
# A real episode of the RL base, the first of these sixteen that reads, edits, tests and submits, seen before
# its last call. Each column is a token of the record; what is missing in a row is not seen. The colour says
# who wrote a token; the note of the summary stands where the source began.

# %%
import matplotlib.pyplot as plt
import pandas as pd

from agentrl.plotting import OWNER_COLORS, save_figure, use_style


def places(view, owner, turn):
    """The columns of a view's tokens: for each the next one of the same owner and turn in the record."""
    free = {key: [t for t, other in enumerate(zip(owner, turn)) if other == key] for key in zip(owner, turn)}
    return [free[key].pop(0) for key in zip(view.owner, view.turn)]


shown = next(traj for traj in trajs if [tok.itos[i] for i in traj.ids[traj.owner == OWNER['policy']]
                                        if tok.itos[i] in TOOLS] == ['read', 'edit', 'test', 'submit'])
rows = [row.tolist() for row in (shown.ids, shown.owner, shown.turn)]
views = {name: CONTEXTS[name](*rows, 3) for name in ('full', 'head cut', 'keep 1', 'summary')}
seen = pd.DataFrame([{'context': name, 'position': t, 'owner': list(OWNER)[who], 'token': tok.itos[i]}
                     for name, view in views.items()
                     for t, i, who in zip(places(view, *rows[1:]), view.ids, view.owner)])
print({name: len(view.ids) for name, view in views.items()})


# %%
def draw_views(seen, labels):
    """A strip of tokens for each context, one above the other."""
    fig, axes = plt.subplots(len(labels), 1, figsize=(11, 1.1 * len(labels) + 0.7), sharex=True)
    end = seen['position'].max()
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        rows = seen[seen['context'] == name]
        colors = [OWNER_COLORS[owner] + '55' for owner in rows['owner']]
        ax.bar(rows['position'], 1, width=0.92, color=colors, edgecolor='#33333355')
        ax.bar(rows['position'], 0.06 * (rows['owner'] == 'policy'), width=0.92, color='#333333')   # underlined
        for row in rows.itertuples():
            ax.text(row.position, 0.5, row.token, rotation=90, ha='center', va='center', fontsize=8)
        ax.text(end + 1, 0.5, f'{len(rows)} tokens', va='center')
        ax.set(ylim=(0, 1), yticks=[], xlim=(-0.7, end + 6))
        ax.set_ylabel(label, rotation=0, ha='right', va='center')
        ax.spines[['left', 'bottom']].set_visible(False)
        ax.tick_params(bottom=ax is axes[-1])
        ax.grid(False)
    axes[-1].set_xlabel('token of the record')
    axes[0].set_title('Figure 12.3  What the last call of a real episode sees')
    for n, (owner, color) in enumerate(OWNER_COLORS.items()):
        axes[0].text(0.68 + 0.08 * n, 1.07, owner, backgroundcolor=color + '55', fontsize=8,
                     transform=axes[0].transAxes)
    return fig


use_style()
labels = {'full': 'everything', 'head cut': 'head cut\n(window 41)', 'keep 1': 'masking\n(keep 1)',
          'summary': 'summary'}
save_figure(draw_views(seen, labels), '12_3_what_a_call_sees', seen)

# %% [markdown]
# ## Law 2: a call is scored where it was sampled
#
# For each context we sample, compute the log-probability of each trained token anew with a full forward pass
# over its sample, and compare with the one stored at sampling. Then the same calls are put into the *full*
# context: what a trainer would do that logs the whole history and forgets that the agent did not see it.

# %%
from agentrl.packing import action_log_probs


@torch.no_grad()
def largest_error(samples):
    """Largest difference of stored and recomputed log-probability over the trained tokens."""
    batch = collate(samples, tok.pad_id)
    logp = action_log_probs(policy, batch['ids'], batch['length'], batch['action_mask'])
    return keep_only(logp - batch['logp'], batch['action_mask']).abs().max().item()


rows = []
for name, context in CONTEXTS.items():
    trajs = roll(context_rollout_batch, context=context)
    samples = [sample for traj in trajs for sample in traj.samples]
    elsewhere = [call_sample(traj, k, CONTEXTS['full']) for traj in trajs for k in range(len(traj.samples))]
    trained = sum(int(sample.action_mask.sum()) for sample in samples)
    rows.append({'context': name, 'samples': len(samples), 'sum of masks': trained,
                 'sampled tokens': sum(int(traj.action_mask.sum()) for traj in trajs),
                 'own context: below 1e-12': largest_error(samples) < 1e-12,
                 'full context: error': round(largest_error(elsewhere), 3)})
pd.DataFrame(rows)

# %% [markdown]
# The masks add up to the number of sampled tokens: each is trained once, none twice. Scored in the full
# context, the same tokens get other probabilities, by several nats for some. PPO's ratio would then compare
# a policy in one context with the same policy in another, and clip or push tokens for no reason of their
# own.
#
# Here is the sample of a last call under `keep 1`: earlier calls are the policy's, but not trained on here.

# %%
trajs = roll(context_rollout_batch, context=CONTEXTS['keep 1'])
traj = next(traj for traj in trajs if len(traj.samples) == 4)
traj.samples[-1]

# %% [markdown]
# ## Law 3: an episode counts once
#
# An episode of five calls becomes five samples. If the group's mean and deviation were taken over samples,
# long episodes would pull the baseline towards themselves. So the advantage (section 9.1, sample deviation)
# is computed over episodes, and each sample gets its episode's.

# %%
#@save
def call_batch(trajs, tok, cfg):
    """All call samples as a batch, and their advantages [S, T-1]: those of their episodes in their groups."""
    batch = collate([sample for traj in trajs for sample in traj.samples], tok.pad_id)
    reward = torch.tensor([traj.reward for traj in trajs], dtype=torch.float64)  # [B]
    advantages = group_advantages(reward, cfg.group_size, cfg.std_normalize)  # [B]
    of_samples = advantages.repeat_interleave(torch.tensor([len(traj.samples) for traj in trajs]))  # [S]
    return batch, keep_only(of_samples[:, None].expand(batch['action_mask'].shape), batch['action_mask'])


# %%
from types import SimpleNamespace

pair = SimpleNamespace(group_size=2, std_normalize=False)
short, long = (min(trajs, key=lambda traj: len(traj.samples)), max(trajs, key=lambda traj: len(traj.samples)))
short.reward, long.reward = 1.0, 0.0
batch, advantages = call_batch([short, long], tok, pair)
print('samples:', len(short.samples), 'and', len(long.samples))
print('advantages:', advantages.sum(1).div(batch['action_mask'].sum(1)).tolist())
over_samples = len(short.samples) / len(batch['ids'])
print(f'a baseline over samples would have been {over_samples:.3f} instead of 0.5')

# %% [markdown]
# With nothing dropped the gradient is that of the default, to rounding: `token_mean` adds up the same
# tokens, only cut into other rows. (One thing differs in a training run: the two minibatches of a step are
# cut over samples, not over episodes, so tokens of an episode may fall into both.)

# %%
from agentrl.training import group_batch, minibatch_step


class NoStep:
    """An optimiser that leaves the parameters alone."""
    def zero_grad(self):
        policy.zero_grad(set_to_none=True)

    def step(self):
        pass


def gradient(trajs, prepare):
    """The clipped gradient of one update over all of `trajs`, as one vector."""
    batch, advantages = prepare(trajs, tok, cfg)
    minibatch_step(policy, NoStep(), batch | {'advantages': advantages}, cfg, action_log_probs)
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


cfg, trajs = RLConfig(), roll(context_rollout_batch, seed=5)
per_call, whole = gradient(trajs, call_batch), gradient(trajs, group_batch)
print('rewards:', [int(traj.reward) for traj in trajs], ' norm > 0.1:', (whole.norm() > 0.1).item())
print('difference below 1e-12:', (per_call - whole).abs().max().item() < 1e-12)

# %% [markdown]
# ## Training and evaluating under a context
#
# The training loop of section 9.2 needs two hooks: `sample=` draws tasks as `sample_step` does, `prepare=`
# is `call_batch`. And what does a context cost? `tokens_read` counts, per episode, all tokens of all views,
# which is what a service without a prefix cache bills; and the *new* ones, those behind the part that a view
# shares with what was read before, which is what a server with a cache computes.

# %%
#@save
def context_groups(policy, tasks, tok, cfg, generator, env_factory=make_env, n=None,
                   context=CONTEXTS['full']):
    """`sample_groups` under a context policy: list of ContextTrajectory."""
    copies = copy_tasks(tasks, cfg.group_size if n is None else n)
    named = [randomize_names(task, generator) for task in copies] if cfg.fresh_names else copies
    envs = [env_factory(cfg) for _ in named]
    return context_rollout_batch(policy, envs, named, tok, cfg.max_turns, cfg.temperature, generator, context)


def context_step(policy, tasks, tok, cfg, generator, env_factory=make_env, context=CONTEXTS['full']):
    """`sample_step` under a context policy: groups of `cfg.prompts_per_step` tasks."""
    return context_groups(policy, draw_tasks(tasks, cfg, generator), tok, cfg, generator, env_factory, context=context)


# %%
#@save
def tokens_read(traj):
    """(all, new): tokens of all views of an episode; those of them behind the prefix that was just read."""
    total, new, before = 0, 0, []
    for sample in traj.samples:
        view = sample.ids[:len(sample.ids) - int(sample.action_mask.sum())].tolist()
        total, new = total + len(view), new + len(view) - len(commonprefix([view, before]))
        before = sample.ids.tolist()
    return total, new


def evaluate_context(policy, tasks, tok, n_samples, generator, cfg, context, env_factory=make_env):
    """`evaluate` under a context policy, with the tokens that an episode reads: all, and new ones."""
    trajs = context_groups(policy, tasks, tok, cfg, generator, env_factory, n_samples, context)
    total, new = zip(*map(tokens_read, trajs), strict=True)
    n = len(trajs)
    return heldout_stats(tasks, trajs) | {'tokens_read': sum(total) / n, 'tokens_new': sum(new) / n}


# %% [markdown]
# ## Exercise: compact the history
#
# Masking keeps every call, a head cut forgets everything. Agents in practice often do a third thing, called
# compaction: the history is replaced by a short note, and only the last turn is left as it was. Write
# `my_compaction(ids, owner, turn, k, tok)`, the ids that call $k$ sees: the prompt; then, if one of the
# turns *before the last* was a `read`, the note of the latest such `read` (`read_notes` makes notes) between
# `<obs>` and `</obs>`; then the last turn, whole. The cell below says whether it is right.

# %%
#@save
COMPACTION_CASES = (  # calls so far, the note to be seen
    ((), None), (('read',), None), (('test', 'test'), None), (('read', 'test'), 'fix_boundary'),
    (('read', 'test', 'edit fix_boundary'), 'fix_boundary'),
    (('read', 'edit fix_boundary', 'read', 'test'), 'no error'),
    (('read', 'edit fix_boundary', 'read'), 'fix_boundary'),
)


def compacted(calls, note, tok):
    """An episode of these calls, and the ids that its next call should see, with the given note."""
    episode, k = Episode(make_env(RLConfig()), make_tasks()[1], tok, max_turns=6, max_len=256), len(calls)
    for call in calls:
        episode.act(ids := tok.encode(f'<call> {call} </call>'), [0.0] * len(ids))
    prompt, last = (pick(episode.ids, episode.owner, episode.turn, [
        t for t, when in enumerate(episode.turn) if when == n]).ids for n in (-1, k - 1))
    return episode, prompt + tok.encode(f'{OBS} {note} {OBS_END}' if note else '') + last * (k > 0)


@exercise
def check_compaction(view):
    """Try `view(ids, owner, turn, k, tok)` on COMPACTION_CASES; a text that says what is wrong."""
    tok = build_tokenizer(make_tasks('all'))
    for calls, note in COMPACTION_CASES:
        episode, expected = compacted(calls, note, tok)
        found = list(view(episode.ids, episode.owner, episode.turn, len(calls), tok))
        if found != expected:
            return (f'Not yet. After the calls {list(calls)} the next one should see\n'
                    f'  {tok.decode(expected)}\nbut your function shows\n  {tok.decode(found)}')
    return f'Right: all {len(COMPACTION_CASES)} cases are as they should be.'


# %%
def my_compaction(ids, owner, turn, k, tok):
    """The prompt, the note of the latest `read` before the last turn (if any), the last turn."""
    raise NotImplementedError


print(check_compaction(my_compaction))

# %% [markdown]
# A solved version, with what this context is worth, is in [the solution](../solutions/s_12_4_summary.ipynb).
#
# ## What was seen
#
# A context policy is a function of the record and says what each call sees. Before the last call of a real
# episode that is 53 tokens with everything in view, 28 with a summary, 26 under masking and 22 behind a cut
# head. With nothing dropped the sampler gives the tokens of the default one, 16 episodes and 53 calls, and
# the same gradient. In all six contexts the masks add up to the number of sampled tokens, and each token
# scores in its own context what it scored at sampling. Put into the full context, some tokens under a cut
# head score otherwise by 5.704 nats, a factor of 300. The advantage is that of the episode: a baseline over
# samples would have been 0.143 where one over episodes is 0.5.
#
# **Try it.** Change the window of `head cut` in `CONTEXTS` to 60, or to 20, and look at the table of
# lengths. For which windows does the agent still see what it read when it chooses its edit?
