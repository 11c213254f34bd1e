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
# # 5.5 Start from a policy that mostly fails, in useful ways
#
# Reinforcement learning can only make frequent what already happens now and then. A policy with random
# weights never makes a well-formed call, so it never earns a reward. We therefore clone demonstrations first,
# on purpose *imperfect* ones: some submit at once, some edit blindly, some dither until the turns are used
# up, and some read. The result, the RL base, passes about one episode in five. Everything later starts from
# it.
#
# **Time** 15 min. **Assumes** [3.3](../03_model/03_3_packed_rows.ipynb),
# [5.3](05_3_lockstep_sampler.ipynb). **Afterwards you can** write imperfect demonstrations, clone them, and
# measure whether the result has what reinforcement learning needs.

# %%
#@save base
import torch
from tqdm import tqdm

from agentrl.cache import cached
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import MAX_CALL_TOKENS, Episode, collate, length_buckets, make_trajectory, take_rows
from agentrl.model import TinyAgent
from agentrl.packing import action_log_probs
from agentrl.tasks import EDIT_OPS, make_tasks, randomize_names
from agentrl.tokenizer import CALL, CALL_END, Tokenizer

# %% [markdown]
# ## Four habits
#
# Each habit is a list of calls for a task. A demonstrator never uses `fix_return`: a task that needs it gets
# a wrong edit. RL cannot find an action whose probability is near zero in a few steps, so this hole keeps
# later pass rates near 0.8, as the book's are; section 12.3 shows a run without it.

# %%
#@save
DEMONSTRATED = tuple(op for op in EDIT_OPS if op != 'fix_return')


def choose(options, rng, weights=None):
    """One of `options`, drawn with the torch.Generator `rng`."""
    weights = torch.ones(len(options)) if weights is None else torch.tensor(weights)
    return options[int(torch.multinomial(weights.double(), 1, generator=rng))]


def chance(p, rng):
    """True with probability p."""
    return bool(torch.rand(1, generator=rng, dtype=torch.float64) < p)


# %%
#@save
def submit_at_once(task, edits, rng):
    return ['submit']


def edit_blindly(task, edits, rng):
    return [f'edit {choose(edits, rng)}', 'submit']


def dither(task, edits, rng):
    """Up to six calls without a plan (one in twenty is the last), then submit: often one call too late."""
    calls = []
    while len(calls) < 6 and not (calls and chance(0.05, rng)):
        call = choose(('test', 'read', 'edit'), rng, (5.0, 2.0, 3.0))
        calls.append(f'edit {choose(edits, rng)}' if call == 'edit' else call)
    return [*calls, 'submit']


def read_and_edit(task, edits, rng):
    """Read, edit (right nine times in ten if known), test, submit; now and then give up after reading."""
    if chance(0.06, rng):
        return ['read', 'submit']
    wrong = [op for op in edits if op != task.edit]
    edit = task.edit if task.edit in edits and chance(0.9, rng) else choose(wrong, rng)
    return ['read', f'edit {edit}', 'test', 'submit']


HABITS = {submit_at_once: 0.16, edit_blindly: 0.33, dither: 0.30, read_and_edit: 0.21}

# %% [markdown]
# One call in a hundred is spoiled: a word is dropped or written twice.

# %%
#@save
def spoil(words, rng):
    """A call with its middle word dropped or doubled."""
    middle = 1 + int(torch.randint(len(words) - 2, (1,), generator=rng))
    return words[:middle] + words[middle + 1:] if chance(0.5, rng) else words[:middle + 1] + words[middle:]


def demonstrate(task, habit, tok, edits, rng, malformed=0.01):
    """A habit's trajectory on a task, in the real environment; spoiled calls come before the real ones."""
    episode = Episode(EditBudgetEnv(), task, tok, max_turns=12, max_len=256)
    calls = habit(task, edits, rng)
    while calls and not episode.done:
        words = [CALL, *calls[0].split(), CALL_END]
        if chance(malformed, rng):
            words = spoil(words, rng)[:MAX_CALL_TOKENS]
        else:
            calls = calls[1:]
        episode.act(tok.encode(' '.join(words)), [0.0] * len(words))
    return make_trajectory(episode)


# %%
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
rng = torch.Generator().manual_seed(0)
for habit in HABITS:
    demo = demonstrate(randomize_names(make_tasks('train')[0], rng), habit, tok, DEMONSTRATED, rng)
    calls = tok.decode(demo.ids[1:][demo.action_mask].tolist()).replace('<call> ', '').split(' </call>')[:-1]
    print(f'{habit.__name__:15} reward {demo.reward}: {" | ".join(call.strip() for call in calls)}')

# %% [markdown]
# ## Cloning
#
# The loss is the cross-entropy of the policy's tokens, averaged over them: the policy gradient of the next
# chapter with advantage 1. Tool and template tokens are masked out, as always.

# %%
#@save
def clone_step(policy, optimizer, batch):
    """One step of cross-entropy on the action tokens of a batch; returns the loss."""
    optimizer.zero_grad()
    n_actions, total = batch['action_mask'].sum(), 0.0
    for rows in length_buckets(batch['length']):
        piece = take_rows(batch, rows)
        logp = action_log_probs(policy, piece['ids'], piece['length'], piece['action_mask'])    # [b, t-1]
        loss = -logp.sum() / n_actions
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return total


def demonstrations(tasks, habits, tok, edits, n, rng):
    """A batch of n demonstrations: random tasks with fresh names, habits in the given shares."""
    named = [randomize_names(choose(tasks, rng), rng) for _ in range(n)]
    kinds = [choose(list(habits), rng, list(habits.values())) for _ in named]
    return collate([demonstrate(task, habit, tok, edits, rng)
                    for task, habit in zip(named, kinds, strict=True)], tok.pad_id)


# %% [markdown]
# Two stages. The first shows reading alone, until the policy connects what it sees with the edit that repairs
# it; a mixture from the start leaves that link at chance. The second mixes the four habits.

# %%
#@save
def clone(tok, edits, seed):
    """Train TinyAgent on demonstrations in two stages; returns the policy."""
    rng = torch.Generator().manual_seed(seed)
    policy, tasks = TinyAgent(len(tok), seed=seed), make_tasks('train')
    progress = tqdm(total=350, desc='RL base')
    for habits, steps, n, lr in (({read_and_edit: 1.0}, 200, 32, 3e-3), (HABITS, 150, 64, 1e-3)):
        optimizer = torch.optim.Adam(policy.parameters(), lr=lr, fused=True)
        warm_up_and_decay = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step, steps=steps: min((step + 1) / 20, 1.0, 2 * (1 - step / steps)))
        for _ in range(steps):
            loss = clone_step(policy, optimizer, demonstrations(tasks, habits, tok, edits, n, rng))
            warm_up_and_decay.step()
            progress.update()
            progress.set_postfix(loss=f'{loss:.3f}')
    progress.close()
    return policy


# %% [markdown]
# ## Made once, kept on disk
#
# `make_rl_base` trains on first use, with a progress bar, and keeps the weights in the cache of section 0.4
# under everything they depend on. The result is the same on every machine, up to rounding in the last digits
# of the weights.

# %%
#@save
@cached
def base_weights(vocabulary, edits, seed):
    """Weights of the cloned policy for a vocabulary (tuple of words)."""
    return clone(Tokenizer(vocabulary), edits, seed).state_dict()


def make_rl_base(tok, seed=0, edits=DEMONSTRATED):
    """The RL starting policy: TinyAgent cloned from imperfect demonstrations that use only `edits`."""
    policy = TinyAgent(len(tok), seed=seed)
    policy.load_state_dict(base_weights(tok.itos, tuple(edits), seed))
    return policy


# %% [markdown]
# ## What the base does
#
# A thousand episodes each on train and held-out tasks. The book's base passed 0.17 of its first training
# batch in 3.64 calls, submitted 0.72 of its episodes, wrote 38 tokens an episode, and 0.019 of its calls were
# malformed.

# %%
from types import SimpleNamespace

import pandas as pd

from agentrl.plotting import save_table
from agentrl.sampling import sample_groups

cfg = SimpleNamespace(group_size=32, max_turns=6, max_edits=1, temperature=1.0, reward='hidden',
                      step_penalty=0.0, wrong_submit=0.0, invalid_penalty=0.0, fresh_names=True)
policy = make_rl_base(tok)


def describe(policy, split, n):
    """Behaviour of a policy over n episodes of every task of a split."""
    trajs = sample_groups(policy, make_tasks(split), tok, cfg, torch.Generator().manual_seed(1), n=n)
    infos = pd.DataFrame([traj.info for traj in trajs])
    actions = sum(int(traj.action_mask.sum()) for traj in trajs)
    means = infos[['hidden_pass', 'submitted', 'n_turns', 'n_reads', 'n_tests', 'n_edits']].mean().to_dict()
    return means | {'malformed a call': infos['n_invalid'].sum() / infos['n_turns'].sum(),
                    'tokens': sum(len(traj.ids) for traj in trajs) / len(trajs),
                    'policy share': actions / sum(len(traj.ids) - 1 for traj in trajs)}


base = pd.DataFrame({split: describe(policy, split, n) for split, n in (('train', 50), ('heldout', 100))})
save_table(base.rename_axis('quantity').reset_index(), '05_5_rl_base')
base.round(3)

# %% [markdown]
# Section 5.3 compared the plain and the cached sampler on a policy that writes rubbish. Here is the
# comparison on real calls of all lengths: forty episodes, the same generator, token for token.

# %%
from agentrl.sampling import CachedReader, PlainReader, rollout_batch

tasks = [randomize_names(task, rng) for task in make_tasks('train') * 2]


def sampled(reader):
    """Forty episodes of the base, read by the given reader."""
    envs, generator = [EditBudgetEnv() for _ in tasks], torch.Generator().manual_seed(3)
    return rollout_batch(policy, envs, tasks, tok, 6, 1.0, generator, reader)


plain, cached_ones = sampled(PlainReader), sampled(CachedReader)
print('lengths from', min(len(traj.ids) for traj in plain), 'to', max(len(traj.ids) for traj in plain))
print('token for token:', all(torch.equal(a.ids, b.ids) for a, b in zip(plain, cached_ones, strict=True)))

# %% [markdown]
# What does it know, and what does it not? We make it read and look at the probability of each edit after
# that, averaged over fresh names. Ditherers read too and edit at random all the same, so the right edit is
# the likeliest but far from certain; and where nothing was demonstrated there is a hole.

# %%
def edit_probabilities(policy, task, rng, n=16):
    """Mean probability of each edit right after reading, over n renamings of a task."""
    total = torch.zeros(len(EDIT_OPS), dtype=torch.float64)
    for _ in range(n):
        episode = Episode(EditBudgetEnv(), randomize_names(task, rng), tok, 6, 256)
        episode.act(tok.encode('<call> read </call>'), [0.0] * 3)
        ids = torch.tensor([episode.ids + tok.encode('<call> edit')])
        with torch.no_grad():
            total += policy(ids)[0, -1].softmax(-1)[[tok.stoi[op] for op in EDIT_OPS]]
    return total / n


def reading_table(policy):
    """Rows: the edit a held-out task needs; columns: probability of each edit after reading."""
    rng, tasks = torch.Generator().manual_seed(2), make_tasks('heldout')
    rows = {op: sum(edit_probabilities(policy, t, rng) for t in tasks if t.edit == op) / 2 for op in EDIT_OPS}
    return pd.DataFrame({op: row.tolist() for op, row in rows.items()}, index=list(EDIT_OPS)).T


reading_table(policy).round(2)

# %% [markdown]
# ## What was seen
#
# A base that makes well-formed calls (0.011 malformed), passes 0.176 of held-out episodes, reads 0.552 times
# an episode and leaves a fifth unsubmitted. After reading, the right edit has a probability between 0.52
# and 0.77, and 0.0 where no demonstration ever showed it. That is what reinforcement learning has to work
# with.
#
# How the mixture was found: an earlier one in which ditherers never stopped before their sixth call held no
# episode of reading, editing and submitting without a test; training with a cost a call (section 12.3) then
# kept the test, because the cheaper episode was never sampled. One stop in twenty calls put it within reach.
# What a policy never does, RL cannot prefer.
#
# **Try it.** Put `test` into only half of the reading demonstrations and make the weights by
# `clone(tok, DEMONSTRATED, seed=0)`, in this notebook alone. How often does the base now test after
# reading, and does the link from reading to the right edit change? Section 12.3 shows what a habit of
# testing costs.
