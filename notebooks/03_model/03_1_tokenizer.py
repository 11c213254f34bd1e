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
# # 3.1 Give every word one token
#
# A policy writes tokens, a tool reads text. If the way from tokens to text and back is not one to one,
# training can look at tokens that were never sampled; section 5.4 shows how that goes wrong. Our tokenizer
# has one token for each word, so the way back is unique. We will see the whole vocabulary, a round trip, and
# what happens to a word that is not in it.
#
# **Time** 5 min. **Assumes** [2.1](../02_fundamentals/02_1_repair_tasks.ipynb). **Afterwards you can** turn
# a task into ids and back without loss, and say what becomes of a word that is not in the vocabulary.

# %%
#@save tokenizer
from dataclasses import dataclass

from agentrl.tasks import EDIT_OPS, NAME_POOL, apply_op, compact_source

# %% [markdown]
# ## The words of the gym
#
# Everything that prompts, calls and observations can say is known beforehand. (A few words, the digits among
# them, wait for variants of the environment in chapter 12: a vocabulary that grows later would change every
# policy.) Six markers give an episode its shape: padding, the beginning, and brackets around a call and
# around an observation.

# %%
#@save
PAD, BOS, CALL, CALL_END, OBS, OBS_END = MARKERS = ('<pad>', '<bos>', '<call>', '</call>', '<obs>', '</obs>')
TOOLS = ('read', 'test', 'edit', 'submit')
OBSERVATION_WORDS = ('visible', 'tests', 'pass', 'fail', 'applied', 'error', 'malformed', 'call', 'no',
                     'edits', 'turns', 'left', '...', *'0123456789')

# %% [markdown]
# ## The tokenizer
#
# A bijection between words and numbers. A word that it does not know is an error that names the word: a
# silent `<unk>` would let a task with a typing error train for hours.

# %%
#@save
@dataclass(frozen=True)
class Tokenizer:
    """Word-level tokenizer: `itos[stoi[word]] == word` for every word of the vocabulary."""
    itos: tuple

    def __post_init__(self):
        object.__setattr__(self, 'stoi', {word: n for n, word in enumerate(self.itos)})
        if len(self.stoi) < len(self.itos):
            raise ValueError('vocabulary holds a word twice: '
                             f'{sorted(w for w in self.stoi if self.itos.count(w) > 1)}')

    def __len__(self):
        return len(self.itos)

    @property
    def pad_id(self):
        """The id that fills short rows of a batch."""
        return self.stoi[PAD]

    @property
    def call_end_id(self):
        """The id that ends a call."""
        return self.stoi[CALL_END]

    def encode(self, text):
        """Ids of the words of `text`; ValueError naming the words that are not in the vocabulary."""
        if not isinstance(text, str):
            raise ValueError(f'text={text!r} must be a string of words')
        words = text.split()
        if unknown := sorted({word for word in words if word not in self.stoi}):
            raise ValueError(f'not in the vocabulary of {len(self)} words: {", ".join(unknown)}. '
                             'Build the tokenizer from all tasks: build_tokenizer(make_tasks("all"))')
        return [self.stoi[word] for word in words]

    def decode(self, ids):
        """The words of `ids`, with a space between each two; ValueError naming ids that have no word."""
        if unknown := [i for i in ids if not 0 <= i < len(self.itos) or i != int(i)]:
            raise ValueError(f'ids {unknown} are outside the vocabulary; allowed: whole numbers from 0 to '
                             f'{len(self) - 1}')
        return ' '.join([self.itos[i] for i in ids])


# %%
toy = Tokenizer(('<pad>', '</call>', 'read', 'me'))
print(toy.encode('read me read'), '->', toy.decode([2, 3, 2]))
try:
    toy.encode('read mee')
except ValueError as error:
    print(error)

# %% [markdown]
# ## Built from the tasks
#
# The words of source code are collected from the tasks themselves, before and after every edit (an agent may
# make a function worse). Words are kept in a fixed order, so the same tasks always give the same
# ids.

# %%
#@save
def build_tokenizer(tasks):
    """The tokenizer of all words of the gym and of `tasks` (issues, and sources before and after edits)."""
    words = list(MARKERS + TOOLS + tuple(EDIT_OPS) + OBSERVATION_WORDS + NAME_POOL)
    for task in tasks:
        words += task.issue.split()
        for op in EDIT_OPS:
            words += compact_source(apply_op(task.source, op)).split() + compact_source(task.source).split()
    return Tokenizer(tuple(dict.fromkeys(words)))


# %%
from agentrl.tasks import make_tasks, randomize_names

tasks = make_tasks('all')
tok = build_tokenizer(tasks)
print(len(tok), 'words')
print(' '.join(tok.itos))

# %% [markdown]
# ## The way back
#
# Decoding and encoding again must give the same ids, for any ids at all: there is only one way to cut a text
# at its spaces. We try it on every task and on random ids that no task would write.

# %%
import torch

rng = torch.Generator().manual_seed(0)
for task in tasks:
    text = compact_source(randomize_names(task, rng).source)
    assert tok.decode(tok.encode(text)) == text
for _ in range(100):
    ids = torch.randint(len(tok), (20,), generator=rng).tolist()
    assert tok.encode(tok.decode(ids)) == ids
print(tok.encode('<call> edit fix_init </call>'))

# %% [markdown]
# ## What was seen
#
# The gym speaks fewer than a hundred words, each with one id, and no sequence of ids has two texts or the
# reverse. A word from outside is refused by name.
#
# **Try it.** Give a task the issue `please mend the function f .` and encode it; then build the tokenizer
# from a list that contains this task.
