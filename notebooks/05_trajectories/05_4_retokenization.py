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
# # 5.4 Train on the tokens that were sampled, not on their spelling
#
# A policy samples ids; logs and tools speak text. Who stores the text and encodes it again for training may
# get *other ids with the same spelling*. The Agent Lightning team named this retokenization drift (on the
# vLLM project's blog, October 2025). On a tokenizer that is small enough to list everything, we will see what
# it does to probabilities, to importance ratios, to masks, to the gradient and to the prefix of a chat, and
# why the episodes of section 5.2 keep ids.
#
# **Time** 15 min. **Assumes** [5.2](05_2_episodes.ipynb). **Afterwards you can** list the ids that one text
# can come from, and compute how encoding it again moves ratio, mask and gradient.

# %% [markdown]
# ## A tokenizer with two minds
#
# Subword tokenizers have pieces of words beside whole words, so that they can spell everything. Ours has
# both. `encode` is greedy: from the left, always the longest piece that fits.

# %%
PIECES = ('<bos>', '</call>', '<obs>', '</obs>', 'submit', 'sub', 'mit', 's', 'u', 'b', 'm', 'i', 't', 'read',
          're', 'ad', 'fail')
LONGEST_FIRST = sorted(PIECES, key=len, reverse=True)


def encode(text):
    """Greedy longest match from the left."""
    pieces = []
    while text:
        pieces.append(next(piece for piece in LONGEST_FIRST if text.startswith(piece)))
        text = text[len(pieces[-1]):]
    return tuple(pieces)


def decode(pieces):
    return ''.join(pieces)


print(encode('submit</call>'), encode('subsub'))
assert decode(encode('submit</call>')) == 'submit</call>'

# %% [markdown]
# Text survives the way through ids and back; that is what "lossless" means. The other way round is the one
# that matters here, and it has no such promise, because a text can be cut in several ways.


# %%
def segmentations(text):
    """All ways to cut `text` into pieces."""
    if not text:
        return [()]
    starts = [piece for piece in PIECES if text.startswith(piece)]
    return [(piece, *rest) for piece in starts for rest in segmentations(text[len(piece):])]


for cut in segmentations('submit'):
    print(' '.join(cut) + '   <- the only one that encode gives' * (cut == encode('submit')))

# %% [markdown]
# ## A policy that uses more than one of them
#
# A policy chooses one piece after the other, so it can write any of these. Here is one with hand-made
# probabilities, where the next piece depends on the one before. Nothing is odd about it: after training on
# text cut one way only, a softmax still leaves some probability on the others, and sampling at temperature 1
# finds them.

# %%
START = {'submit': 0.4, 'sub': 0.2, 's': 0.1, 'read': 0.2, 're': 0.1}
NEXT = {
    '<bos>': START, '</obs>': START,
    'sub': {'mit': 0.7, 'm': 0.3}, 's': {'u': 1.0}, 'u': {'b': 1.0}, 'b': {'mit': 0.5, 'm': 0.5},
    'm': {'i': 1.0}, 'i': {'t': 1.0}, 're': {'ad': 1.0},
    **{last: {'</call>': 1.0} for last in ('submit', 'mit', 't', 'read', 'ad')},
}
assert all(abs(sum(row.values()) - 1) < 1e-12 for row in NEXT.values())

# %% [markdown]
# Seven calls are possible, and we can list them with their exact probabilities. Five spell `submit`, two
# spell `read`.

# %%
import pandas as pd


def all_calls(previous='<bos>'):
    """Every call that the policy can write, with its probability."""
    if previous == '</call>':
        return {(): 1.0}
    return {(piece, *rest): p * q for piece, p in NEXT[previous].items()
            for rest, q in all_calls(piece).items()}


calls = all_calls()
assert abs(sum(calls.values()) - 1) < 1e-12
again = {call: encode(decode(call)) for call in calls}
pd.DataFrame([{'sampled': ' '.join(call), 'probability': round(p, 3), 'encoded again': ' '.join(again[call]),
               'same ids': again[call] == call} for call, p in calls.items()])

# %% [markdown]
# ## How often a round trip changes the ids
#
# Adding up the rows that change gives the exact share. Sampling piece by piece gives it roughly. And an
# episode has several calls, all of which must survive.

# %%
import torch


def sample_call(generator):
    """One call, piece by piece, by the inverse of the cumulative distribution."""
    call = ['<bos>']
    while call[-1] != '</call>':
        row = NEXT[call[-1]]
        cumulative = torch.tensor(list(row.values()), dtype=torch.float64).cumsum(0)
        u = torch.rand((), generator=generator, dtype=torch.float64)
        call.append(list(row)[min(int((cumulative <= u).sum()), len(row) - 1)])
    return tuple(call[1:])


rng = torch.Generator().manual_seed(0)
drawn = [sample_call(rng) for _ in range(2000)]
drift = sum(p for call, p in calls.items() if again[call] != call)
print('exact:', round(drift, 3), ' of 2000 drawn:', sum(again[call] != call for call in drawn) / 2000)
print('episodes of 1, 2, 4 calls that survive:', [round((1 - drift)**n, 3) for n in (1, 2, 4)])

# %% [markdown]
# ## The ratio is not 1 before any update
#
# PPO and GRPO weigh a token by the ratio of its probability now to its probability when it was sampled.
# Before the first update the policy has not changed, so every ratio must be 1. Here we keep the sampling
# log-probability and compute the new one from text. The pieces no longer match one to one, so we take
# the ratio of the whole call. By hand: `sub mit` was sampled at 0.2 × 0.7 = 0.14 and is now read as
# `submit`, at 0.4, which makes a ratio of 2.857.

# %%
ratios = pd.DataFrame([{'sampled': ' '.join(call), 'p sampled': round(p, 3),
                        'p encoded again': calls[again[call]],
                        'ratio': round(calls[again[call]] / p, 3)} for call, p in calls.items()])
ratios['kept by clip 0.2'] = ratios['ratio'].between(0.8, 1.2)
ratios

# %% [markdown]
# Every drifted call lies outside the clipping range of 0.8 to 1.2. With a positive advantage PPO throws its
# gradient away, with a negative one it weighs it up to eightfold. There is also a cheap alarm. For any policy
# p′ that writes only what p can write, the mean ratio under p is Σ p · (p′/p) = Σ p′ = 1. Under drift it is
# not.

# %%
kept_mean = sum(p * (calls[call] / p) for call, p in calls.items())
drift_mean = sum(p * (calls[again[call]] / p) for call, p in calls.items())
print('mean ratio, ids kept:', round(kept_mean, 3), ' ids from text:', round(drift_mean, 3))

# %% [markdown]
# ## Masks move
#
# An episode is one row of tokens with a mask that says which of them the policy wrote. If the row is encoded
# again and the mask is not, they no longer fit: the counts differ, and everything behind the first change is
# shifted.

# %%
turns = [('<bos>',), ('re', 'ad', '</call>'), ('<obs>', 'fail', '</obs>'), ('sub', 'mit', '</call>')]
sampled = sum(turns, ())                                                          # [T]
mask = [n in (1, 3) for n, turn in enumerate(turns) for _ in turn]                # [T]
reread = encode(decode(sampled))                                                  # shorter
padded = reread + ('',) * (len(sampled) - len(reread))
pd.DataFrame({'sampled': sampled, 'mask': mask, 'encoded again': padded})

# %% [markdown]
# With the stored mask, `<obs>` would be trained as if the policy had said it, and `submit`, which it did say,
# would not be trained at all.

# %%
print('trained:', [piece for piece, acts in zip(reread, mask, strict=False) if acts])
print('said:   ', [piece for piece, acts in zip(sampled, mask, strict=True) if acts])

# %% [markdown]
# ## The gradient is biased, even if nobody forgets anything
#
# Suppose mask and log-probabilities are computed afresh from the new ids, so that every ratio is 1 and all
# looks healthy. The gradient is still wrong. Let the five logits of `START` be the parameters θ, and pay 1
# for the text `submit`. The exact gradient of $J(\theta) = \sum_y \pi_\theta(y) R(y)$ comes from autograd
# over all seven calls.

# %%
names, rows = list(START), list(calls)
first = torch.tensor([names.index(call[0]) for call in rows])                     # [7]
rest = torch.tensor([calls[call] / START[call[0]] for call in rows], dtype=torch.float64)
retokenized = torch.tensor([names.index(again[call][0]) for call in rows])
pays = torch.tensor([decode(call).startswith('submit') for call in rows], dtype=torch.float64)
theta = torch.tensor(list(START.values()), dtype=torch.float64).log().requires_grad_()


def probabilities(theta):
    """Of the seven calls: softmax over the first piece, times the fixed rest."""
    return theta.softmax(0)[first] * rest                                         # [7]


exact, = torch.autograd.grad((probabilities(theta) * pays).sum(), theta)
print(dict(zip(names, [round(x, 3) for x in exact.tolist()], strict=True)))

# %% [markdown]
# By hand it is $\pi_i (R_i - J)$, with J = 0.7: for `sub` 0.2 × (1 − 0.7) = 0.06. Now REINFORCE (Williams,
# 1992), the mean of $R(y) \nabla \log \pi(y)$ over what was sampled. We take the mean exactly, over all seven
# calls, once with the sampled ids and once with the ids encoded again.


# %%
def reinforce(theta, reward, trained):
    """Exact mean of R(y) grad log pi(`trained`(y)): the first piece that is trained stands for the call."""
    p = probabilities(theta).detach()
    return torch.autograd.grad((p * reward * theta.log_softmax(0)[trained]).sum(), theta)[0]


by_hand = [p * (r - 0.7) for p, r in zip(START.values(), (1, 1, 1, 0, 0), strict=True)]
kept, drifted = reinforce(theta, pays, first), reinforce(theta, pays, retokenized)
assert torch.allclose(exact, torch.tensor(by_hand, dtype=torch.float64)) and torch.allclose(exact, kept)
columns = {'exact': exact, 'ids kept': kept, 'ids from text': drifted}
pd.DataFrame({name: column.tolist() for name, column in columns.items()}, index=names).round(3)

# %% [markdown]
# Read the row of `sub`: it earned the reward and is pushed *down*, since its reward was booked under
# `submit`. More samples do not help, because this is bias and not noise: the error of the estimate goes to
# zero with kept ids only.

# %%
for n in (100, 10_000, 1_000_000):
    picks = torch.multinomial(probabilities(theta).detach(), n, replacement=True, generator=rng)
    share = torch.bincount(picks, minlength=7).to(torch.float64) / n              # in place of exact ones
    errors = []
    for trained in (first, retokenized):
        estimate, = torch.autograd.grad((share * pays * theta.log_softmax(0)[trained]).sum(), theta)
        errors.append(round(float((estimate - exact).norm()), 2))
    print(f'{n:9,} samples: error {errors[0]:.2f} with ids kept, {errors[1]:.2f} with ids from text')

# %% [markdown]
# ## Why: the score no longer has mean zero
#
# A policy gradient may subtract a baseline because the mean of $\nabla \log \pi(y)$ over samples of π is
# zero. Over other tokens it is not. With reward 1 for *everything* nothing can be learned, and yet the
# drifted gradient pulls towards the tokenizer's favourite cuts.

# %%
always = torch.ones(7, dtype=torch.float64)
columns = {'ids kept': reinforce(theta, always, first),
           'ids from text': reinforce(theta, always, retokenized)}
pd.DataFrame({name: column.tolist() for name, column in columns.items()}, index=names).round(3) + 0.0

# %% [markdown]
# ## What it does to training
#
# Let the environment punish `submit` with −1, as it may do for a wrong submission. Both learners follow their
# exact mean gradient, from the same start.

# %%
marks, history, ends = (0, 10, 100, 1000), {}, {}
for label, trained in (('ids kept', first), ('ids from text', retokenized)):
    point, path = theta.detach().clone().requires_grad_(), []
    for step in range(marks[-1] + 1):
        if step in marks:
            path.append(round(float((probabilities(point) * pays).sum().detach()), 3))
            ends[label] = dict(zip(names, [round(x, 3) for x in point.softmax(0).tolist()], strict=True))
        point = (point + reinforce(point, -pays, trained)).detach().requires_grad_()
    history[label] = path
pd.DataFrame(history, index=pd.Index(marks, name='step')).rename_axis(columns='share of submit')

# %%
pd.DataFrame(ends).rename_axis('first piece at the end')

# %% [markdown]
# One learner stops. The other unlearns the spelling that gets the blame, `submit` in one piece, and goes on
# to submit in the spelling that it really samples. `sub` and `read` start alike and are pushed up alike, so
# it ends at one half and stays there.
#
# ## The prefix of a chat breaks
#
# A chat sends the whole history with every turn. If the history goes as text, the server cuts it anew, and
# the ids of turn 2 need not begin with those that were sampled in turn 1. Then the key/value cache is of no
# use behind the first difference, and, what is worse, the policy acts on a context that it never produced:
# the turns no longer form one row to train on.


# %%
def common_prefix(a, b):
    """How many pieces two sequences share from the start."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


answer = ('<obs>', 'fail', '</obs>')
chat, table = ('<bos>',), []
for call in (('read', '</call>'), ('re', 'ad', '</call>'), ('s', 'u', 'b', 'mit', '</call>')):
    before, chat = chat, chat + call + answer
    request = encode(decode(chat))
    table.append({'sampled': ' '.join(call), 'ids in the cache': len(chat),
                  'usable, sent as text': common_prefix(chat, request),
                  'usable, sent as ids': common_prefix(chat, before + call + answer)})
pd.DataFrame(table)

# %% [markdown]
# ## The cure: tokens in, tokens out
#
# Nothing about a text needs to be repaired if the ids are kept. They go with their sampling log-probabilities
# from the sampler into the record, from the record into the next request and into the loss; text is a copy
# for tools and people, and is never read back. `Episode.act` of section 5.2 takes ids, and only observations
# are encoded, once, when they arrive. The check is cheap: before the first update every ratio is 1.

# %%
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tasks = make_tasks('all')
tok = build_tokenizer(tasks)
episode = Episode(EditBudgetEnv(), tasks[0], tok, max_turns=6, max_len=256)
prefix, sampled_ids = list(episode.ids), tok.encode('<call> read </call>')
episode.act(sampled_ids, [-0.5] * len(sampled_ids))
assert episode.ids[:len(prefix) + len(sampled_ids)] == prefix + sampled_ids
print('kept as sampled:', tok.decode(prefix + sampled_ids))

# %% [markdown]
# ## Which tokenizers are free of it
#
# What is needed is `encode(decode(ids)) == ids` for *all* ids that a policy can write, and this is a property
# of decoding: no two sequences may have one text. We count all sequences of up to three pieces. The same
# pieces with a space between them pass, since a space shows where the cut was. That is our word-level
# tokenizer, tried here on all pairs of its words.

# %%
from itertools import product

sequences = [pieces for n in (1, 2, 3) for pieces in product(PIECES, repeat=n)]
print('sequences:', len(sequences))
print('texts, pieces joined:     ', len({decode(pieces) for pieces in sequences}))
print('texts, a space between:   ', len({' '.join(pieces) for pieces in sequences}))
print('back to the same ids:     ', sum(encode(decode(pieces)) == pieces for pieces in sequences))

# %%
pairs = [list(pair) for n in (1, 2) for pair in product(range(len(tok)), repeat=n)]
print('agentrl.Tokenizer:', sum(tok.encode(tok.decode(pair)) == pair for pair in pairs), 'of', len(pairs))

# %% [markdown]
# So this book has no drift by construction. A subword model has it as soon as it samples. Two relatives do
# not need two segmentations and hit word-level tokenizers as well: a tool call that is parsed and written out
# again in another layout, and a template that is applied once more with other white space. The cure is the
# same.
#
# ## What was seen
#
# A round trip changes 0.4 of the calls, and 0.13 of episodes with four calls survive. Ratios before any
# update are 1 with kept ids and up to 8 with ids from text, at a mean of 2.4. A stored mask trains `<obs>`.
# The gradient pushes `sub` by −0.14 where 0.06 is right, which a million samples do not mend; punished, the
# learner ends at a share of 0.5 instead of 0.001. After three turns of chat, 6 of 20 cached ids are usable.
#
# **Try it.** Give `START` more of the greedy spelling: 0.68 for `submit`, 0.01 each for `sub` and `s`. Drift
# becomes rare; why does the mean ratio rise? Add the piece `</call>s` to `PIECES` and look at
# `encode('</call>submit')`: who wrote its first token?
