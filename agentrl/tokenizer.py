# Made by tools/export.py from notebooks/03_model/03_1_tokenizer.py. Do not edit: change it there, then `make export`.
# Body: 2c76af9a5977af86
"""3.1 Give every word one token."""

from dataclasses import dataclass

from agentrl.tasks import EDIT_OPS, NAME_POOL, apply_op, compact_source

# 03_model/03_1_tokenizer, cell 2
PAD, BOS, CALL, CALL_END, OBS, OBS_END = MARKERS = ('<pad>', '<bos>', '<call>', '</call>', '<obs>', '</obs>')
TOOLS = ('read', 'test', 'edit', 'submit')
OBSERVATION_WORDS = ('visible', 'tests', 'pass', 'fail', 'applied', 'error', 'malformed', 'call', 'no',
                     'edits', 'turns', 'left', '...', *'0123456789')


# 03_model/03_1_tokenizer, cell 3
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


# 03_model/03_1_tokenizer, cell 5
def build_tokenizer(tasks):
    """The tokenizer of all words of the gym and of `tasks` (issues, and sources before and after edits)."""
    words = list(MARKERS + TOOLS + tuple(EDIT_OPS) + OBSERVATION_WORDS + NAME_POOL)
    for task in tasks:
        words += task.issue.split()
        for op in EDIT_OPS:
            words += compact_source(apply_op(task.source, op)).split() + compact_source(task.source).split()
    return Tokenizer(tuple(dict.fromkeys(words)))
