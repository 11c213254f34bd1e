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
# # 3.2 Build TinyAgent and read each token once
#
# The policy is a small decoder-only transformer. To write one token it must look at all earlier ones; done
# naively, an episode of T tokens costs T forward passes over up to T tokens. A key/value cache makes each
# token pass through the network once. We build both, on numbers small enough to print, and see that they give
# the same logits to rounding.
#
# **Time** 15 min. **Assumes** [3.1](03_1_tokenizer.ipynb). **Afterwards you can** write attention with and
# without a key/value cache, and show that both give the same logits for rows of different lengths.

# %%
#@save model
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

# %% [markdown]
# ## One block
#
# Pre-norm, as in GPT-2 (Radford et al. 2019), with ReLU in place of GELU, which costs a tenth of a training
# step. The keys have no bias: softmax ignores a constant added to all scores of a query, so the true gradient
# of that bias is zero, and Adam would turn its rounding noise into full-sized steps.
#
# The block does not know where its keys come from. It hands queries, keys and values to a function `attend`;
# everything else in it acts on each token alone, so it works on a padded batch [B, T, d] as well as on a bag
# of tokens [N, d]. Of a bag, `keep` may choose the tokens whose output is wanted. In the last block that is a
# saving: nobody looks at what it makes of the other tokens, only at their keys and values.

# %%
#@save
class Block(nn.Module):
    """Pre-norm transformer block: x [B, T, d] -> [B, T, d], or x [N, d] -> [M, d], the tokens to keep."""

    def __init__(self, d, d_mlp, dtype):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, dtype=dtype), nn.LayerNorm(d, dtype=dtype)
        self.query, self.value = nn.Linear(d, d, dtype=dtype), nn.Linear(d, d, dtype=dtype)
        self.key = nn.Linear(d, d, bias=False, dtype=dtype)
        self.out = nn.Linear(d, d, dtype=dtype)
        self.mlp = nn.Sequential(nn.Linear(d, d_mlp, dtype=dtype), nn.ReLU(),
                                 nn.Linear(d_mlp, d, dtype=dtype))

    def forward(self, x, attend, keep=slice(None)):
        h = self.norm1(x)
        x = x[keep] + self.out(attend(self.query(h), self.key(h), self.value(h))[keep])
        return x + self.mlp(self.norm2(x))


# %% [markdown]
# ## Attention in training: all rows start at 0
#
# With whole episodes in a batch, `is_causal=True` says all there is to say. Padding at the right of a row is
# never seen by a real token, which stands before it.

# %%
#@save
def split_heads(x, n_heads):
    """[B, n, d] -> [B, H, n, d/H]"""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge_heads(x):
    """[B, H, n, d/H] -> [B, n, d]"""
    return x.transpose(1, 2).flatten(2)


def attend_causally(n_heads):
    """Attention of whole rows: every token sees itself and what stands before it."""
    def attend(q, k, v):
        q, k, v = (split_heads(x, n_heads) for x in (q, k, v))
        return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    return attend


# %% [markdown]
# ## Attention in sampling: rows stand at different places
#
# Keys and values that have been computed once are kept. One row of the cache is one episode; a token's key
# lies at its position, so the cache of a row is as wide as its episode is long.

# %%
#@save
@dataclass
class KVCache:
    """Keys and values read so far: kv [layers, 2, R, width, d], lengths [R]."""
    kv: torch.Tensor
    lengths: torch.Tensor

    def select(self, rows):
        """The cache of some of its rows."""
        return KVCache(self.kv[:, :, rows], self.lengths[rows])

    def widen(self, width):
        """The same cache with room for at least `width` tokens a row, in steps of 64."""
        extra = 0 if width <= self.kv.shape[3] else -(-width // 64) * 64 - self.kv.shape[3]
        return self if extra == 0 else replace(self, kv=F.pad(self.kv, (0, 0, 0, extra)))


# %% [markdown]
# One row of a batch may have just received an observation of 28 tokens, another is in the middle of a call
# and gets one. We lay the *new* tokens of all rows end to end, N in number, and note for each its row and its
# position. Only attention needs rows. Padding every row's queries to 28 for the sake of one would make
# attention the most expensive part of sampling, so they come in two rectangles: the last new token of every
# row, [R, 1], and for the few rows that got more than one, what stands before it, [r, n]. A query at position
# p sees the keys of its row up to p, nothing later.

# %%
#@save
@dataclass
class Queries:
    """A rectangle of queries: rows of the cache [r]; token (its number among the new), real [r, n]; mask."""
    rows: torch.Tensor | slice
    token: torch.Tensor
    real: torch.Tensor
    mask: torch.Tensor                                                            # [r, 1, n, width]


def make_queries(rows, first, n_tokens, start):
    """Queries of `n_tokens` [r] tokens a row: number `first` [r] and following, at position `start` [r]."""
    offset = torch.arange(int(n_tokens.max()))                                    # [n]
    real = offset < n_tokens[:, None]                                             # [r, n]
    keys = torch.arange(int((start + n_tokens).max()))                            # [width]
    mask = keys <= (start[:, None] + offset)[..., None]                           # [r, n, width]
    return Queries(rows, (first[:, None] + offset).where(real, 0), real, mask[:, None])


# %%
#@save
@dataclass
class NewTokens:
    """All rows' new tokens end to end: ids, row, position [N]; their queries, the last of each row first."""
    ids: torch.Tensor
    row: torch.Tensor
    position: torch.Tensor
    queries: list


def lay_out(new_ids, lengths):
    """NewTokens of a list of ids a row (some may be empty), for rows that have read `lengths` [R] tokens."""
    n_new = torch.tensor([len(ids) for ids in new_ids])                           # [R]
    first = n_new.cumsum(0) - n_new                                               # [R]
    row = torch.arange(len(new_ids)).repeat_interleave(n_new)                     # [N]
    queries = [make_queries(slice(None), first + n_new - 1, n_new.clamp(max=1), lengths + n_new - 1)]
    more = (n_new > 1).nonzero()[:, 0]                                            # [r]
    if len(more):
        queries.append(make_queries(more, first[more], n_new[more] - 1, lengths[more]))
    return NewTokens(ids=torch.tensor([i for ids in new_ids for i in ids]), row=row, queries=queries,
                     position=lengths[row] + torch.arange(len(row)) - first[row])


# %%
new = lay_out([[7, 8, 9], [], [6]], lengths=torch.tensor([1, 3, 2]))
print('row     ', new.row.tolist(), '\nposition', new.position.tolist())
for queries in new.queries:
    print('tokens', queries.token.tolist(), 'real', queries.real.int().tolist(),
          'see', queries.mask[:, 0].sum(-1).tolist(), 'keys')

# %% [markdown]
# Row 0 has read one token and gets three: they stand at positions 1, 2 and 3; the last of them sees four
# keys, the two before it two and three. Row 1 waits: its query is not real. Row 2 gets one, at position 2.

# %%
#@save
def attend_to_cache(kv, new, queries, n_heads):
    """Attention over a layer's cache kv [2, R, width, d], into which new keys and values go first."""
    def attend(q, k, v):                                                          # each [N, d]
        kv[0, new.row, new.position], kv[1, new.row, new.position] = k, v
        seen = torch.zeros_like(q)                                                # [N, d]
        for part in queries:
            keys, values = kv[:, :, :part.mask.shape[-1]][:, part.rows]           # each [r, width, d]
            out = merge_heads(F.scaled_dot_product_attention(
                *(split_heads(x, n_heads) for x in (q[part.token], keys, values)), attn_mask=part.mask))
            seen[part.token[part.real]] = out[part.real]
        return seen

    return attend


# %% [markdown]
# ## The whole model
#
# `extend` writes into the cache that it is given: go on with the one that it returns. To branch, copy `kv` first.

# %%
#@save
class TinyAgent(nn.Module):
    """Decoder-only transformer policy: `vocab_size` words, up to `max_len` tokens, on the CPU in float64."""
    def __init__(self, vocab_size, d=64, n_layers=3, n_heads=4, d_mlp=192, max_len=256, dtype=torch.float64, seed=0):
        super().__init__()
        check_sizes(vocab_size=vocab_size, d=d, n_layers=n_layers, n_heads=n_heads, d_mlp=d_mlp, max_len=max_len)
        check_heads(d, n_heads)
        self.max_len, self.vocab_size, self.n_heads = max_len, vocab_size, n_heads
        self.tokens, self.positions = (nn.Embedding(n, d, dtype=dtype) for n in (vocab_size, max_len))
        self.blocks = nn.ModuleList(Block(d, d_mlp, dtype) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d, dtype=dtype)
        self.head = nn.Linear(d, vocab_size, bias=False, dtype=dtype)
        init_weights(self, torch.Generator().manual_seed(seed))
    def forward(self, ids):
        """Logits [B, T, V] for the token after each of ids [B, T]."""
        check_batch(ids)
        check_ids(self, ids, ids.shape[1])
        return self.head(self.hidden(ids))
    def hidden(self, ids):
        """What the head reads, [B, T, d], of ids [B, T]."""
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]               # [B, T, d]
        for block in self.blocks:
            x = block(x, attend_causally(self.n_heads))
        return self.norm(x)
    def empty_cache(self, n_rows):
        """A cache for `n_rows` episodes of which nothing has been read."""
        kv = torch.zeros(len(self.blocks), 2, n_rows, 0, self.head.in_features, dtype=self.head.weight.dtype)
        return KVCache(kv, torch.zeros(n_rows, dtype=torch.long))
    @torch.no_grad()
    def extend(self, new_ids, cache):
        """Read new ids (a list a row, not all empty); logits [R', V] of rows that got some, and the cache."""
        new = lay_out(new_ids, cache.lengths)
        n_read = int(new.position.max()) + 1
        check_ids(self, new.ids, n_read)
        cache, last = cache.widen(n_read), new.queries[0]
        x = self.tokens(new.ids) + self.positions(new.position)                   # [N, d]
        for kv, block in zip(cache.kv[:-1], self.blocks[:-1], strict=True):
            x = block(x, attend_to_cache(kv, new, new.queries, self.n_heads))
        x = self.blocks[-1](x, attend_to_cache(cache.kv[-1], new, [last], self.n_heads),
                            keep=last.token[last.real])                           # [R', d]
        lengths = cache.lengths + new.row.bincount(minlength=len(new_ids))
        return self.head(self.norm(x)), replace(cache, lengths=lengths)


# %% [markdown]
# In the last block only the last new token of each row goes on: its output alone is asked for.
#
# Three helpers complete it. Weights come from an explicit generator, with the residual branches scaled down
# by the depth as in GPT-2 (Radford et al. 2019). Ids that do not fit are refused here, where the message can
# still say what to do.

# %%
#@save
def init_weights(model, rng):
    """Normal: deviation 0.02 in embeddings, inputs ** -0.5 in maps, residual ones over sqrt(2 layers)."""
    residual = {id(m) for block in model.blocks for m in (block.out, block.mlp[2])}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02, generator=rng)
        if isinstance(module, nn.Linear):
            shrink = (2 * len(model.blocks)) ** -0.5 if id(module) in residual else 1.0
            nn.init.normal_(module.weight, std=shrink * module.in_features ** -0.5, generator=rng)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def check_sizes(**sizes):
    """ValueError unless each of the named sizes is a whole number above 0."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f'{name}={size!r} must be a whole number >= 1')


def check_heads(d, n_heads):
    """ValueError if the width does not divide into heads."""
    if d % n_heads:
        raise ValueError(f'd={d} must be a multiple of n_heads={n_heads}')


def check_batch(ids):
    """ValueError unless ids are [B, T]."""
    if ids.dim() != 2:
        raise ValueError(f'ids have shape {list(ids.shape)}; allowed: [B, T]')


def check_ids(model, ids, length):
    """ValueError if the batch is longer than the context or holds a word the model has no row for."""
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f'ids are {ids.dtype}; allowed: whole numbers, such as torch.long')
    if length > model.max_len:
        raise ValueError(f'{length} tokens do not fit into the context of {model.max_len}; '
                         'shorten the episode or build TinyAgent with a larger max_len')
    if ids.numel() and not 0 <= (wrong := int(ids.min())) <= (wrong := int(ids.max())) < model.vocab_size:
        raise ValueError(f'token id {wrong} is outside the vocabulary of {model.vocab_size} words; '
                         'build TinyAgent(len(tok)) from the tokenizer that made these ids')


# %%
tiny = TinyAgent(vocab_size=5, d=8, n_layers=2, n_heads=2, d_mlp=16, max_len=8)
ids = torch.tensor([[1, 2, 3, 4, 0, 1], [4, 3, 2, 1, 0, 0]])                      # [2, 6]
print(tiny(ids).shape)

from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

n_words = len(build_tokenizer(make_tasks('all')))
n_parameters = sum(p.numel() for p in TinyAgent(n_words).parameters())
print(n_parameters, 'parameters with the', n_words, 'words of the gym')

# %% [markdown]
# ## Both forms agree
#
# We read row 0 in steps of 3, 1 and 2 tokens and row 1 in steps of 1, 3 and 2, and compare each logit with
# the full forward pass.

# %%
full, cache, read = tiny(ids), tiny.empty_cache(2), torch.zeros(2, dtype=torch.long)
for n_new in (torch.tensor([3, 1]), torch.tensor([1, 3]), torch.tensor([2, 2])):
    news = [ids[b, read[b]:read[b] + n_new[b]].tolist() for b in range(2)]
    logits, cache = tiny.extend(news, cache)
    read += n_new
    difference = (logits - full[torch.arange(2), read - 1]).abs().max().item()
    print('read', read.tolist(), 'agrees:', difference < 1e-12)

# %% [markdown]
# ## Log-probabilities of what was written
#
# Training needs the log-probability of each token given what stands before it. The logits at position t speak
# of token t+1, so T tokens have T−1 of them. `selected_log_probs` picks; `sequence_log_probs` does all of it.

# %%
#@save
def check_positive(name, value):
    """ValueError unless value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float('inf'):
        raise ValueError(f'{name}={value!r} must be a finite number > 0')


def selected_log_probs(logits, ids):
    """log softmax(logits)[ids]: logits [..., V], ids [...] -> [...]; ValueError for other shapes."""
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f'ids have shape {list(ids.shape)}; allowed: {list(logits.shape[:-1])}, one per row of logits')
    return logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)


def sequence_log_probs(model, ids, temperature=1.0):
    """log p(ids[:, t+1] | ids[:, :t+1]) at the given temperature: [B, T] -> [B, T-1]."""
    check_batch(ids)
    check_positive('temperature', temperature)
    return selected_log_probs(model(ids[:, :-1]) / temperature, ids[:, 1:])


# %%
logp = sequence_log_probs(tiny, ids)
by_hand = torch.stack([tiny(ids)[b, t].softmax(-1)[ids[b, t + 1]].log() for b in range(2) for t in range(5)])
print(logp.shape, torch.allclose(logp.flatten(), by_hand, atol=1e-12, rtol=0))

# %% [markdown]
# ## Wrong input
#
# A context that is too long and a vocabulary that does not fit are the two mistakes that one makes here.

# %%
for bad in (torch.zeros(1, 9, dtype=torch.long), torch.tensor([[7]])):
    try:
        tiny(bad)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## What was seen
#
# A transformer of 153,536 parameters (the book's has 158 thousand, with a larger vocabulary) whose cached
# form, fed with any number of tokens a row, gives the logits of the full forward pass to within 1e-12. From
# now on sampling reads each token once.
#
# **Try it.** Give the keys a bias and look at its gradient after a backward pass. Or widen the cache with
# `nan` instead of zero and explain why a masked key can still do harm.
