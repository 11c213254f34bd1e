# Made by tools/export.py from notebooks/03_model/03_2_tiny_agent.py. Do not edit: change it there, then `make export`.
# Body: 7827b2a90bdd2381
"""3.2 Build TinyAgent and read each token once."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn


# 03_model/03_2_tiny_agent, cell 2
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


# 03_model/03_2_tiny_agent, cell 3
def split_heads(x, n_heads):
    """[B, n, d] -> [B, H, n, d/H]"""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


# 03_model/03_2_tiny_agent, cell 3
def merge_heads(x):
    """[B, H, n, d/H] -> [B, n, d]"""
    return x.transpose(1, 2).flatten(2)


# 03_model/03_2_tiny_agent, cell 3
def attend_causally(n_heads):
    """Attention of whole rows: every token sees itself and what stands before it."""
    def attend(q, k, v):
        q, k, v = (split_heads(x, n_heads) for x in (q, k, v))
        return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    return attend


# 03_model/03_2_tiny_agent, cell 4
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


# 03_model/03_2_tiny_agent, cell 5
@dataclass
class Queries:
    """A rectangle of queries: rows of the cache [r]; token (its number among the new), real [r, n]; mask."""
    rows: torch.Tensor | slice
    token: torch.Tensor
    real: torch.Tensor
    mask: torch.Tensor                                                            # [r, 1, n, width]


# 03_model/03_2_tiny_agent, cell 5
def make_queries(rows, first, n_tokens, start):
    """Queries of `n_tokens` [r] tokens a row: number `first` [r] and following, at position `start` [r]."""
    offset = torch.arange(int(n_tokens.max()))                                    # [n]
    real = offset < n_tokens[:, None]                                             # [r, n]
    keys = torch.arange(int((start + n_tokens).max()))                            # [width]
    mask = keys <= (start[:, None] + offset)[..., None]                           # [r, n, width]
    return Queries(rows, (first[:, None] + offset).where(real, 0), real, mask[:, None])


# 03_model/03_2_tiny_agent, cell 6
@dataclass
class NewTokens:
    """All rows' new tokens end to end: ids, row, position [N]; their queries, the last of each row first."""
    ids: torch.Tensor
    row: torch.Tensor
    position: torch.Tensor
    queries: list


# 03_model/03_2_tiny_agent, cell 6
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


# 03_model/03_2_tiny_agent, cell 8
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


# 03_model/03_2_tiny_agent, cell 9
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


# 03_model/03_2_tiny_agent, cell 10
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


# 03_model/03_2_tiny_agent, cell 10
def check_sizes(**sizes):
    """ValueError unless each of the named sizes is a whole number above 0."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f'{name}={size!r} must be a whole number >= 1')


# 03_model/03_2_tiny_agent, cell 10
def check_heads(d, n_heads):
    """ValueError if the width does not divide into heads."""
    if d % n_heads:
        raise ValueError(f'd={d} must be a multiple of n_heads={n_heads}')


# 03_model/03_2_tiny_agent, cell 10
def check_batch(ids):
    """ValueError unless ids are [B, T]."""
    if ids.dim() != 2:
        raise ValueError(f'ids have shape {list(ids.shape)}; allowed: [B, T]')


# 03_model/03_2_tiny_agent, cell 10
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


# 03_model/03_2_tiny_agent, cell 13
def check_positive(name, value):
    """ValueError unless value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float('inf'):
        raise ValueError(f'{name}={value!r} must be a finite number > 0')


# 03_model/03_2_tiny_agent, cell 13
def selected_log_probs(logits, ids):
    """log softmax(logits)[ids]: logits [..., V], ids [...] -> [...]; ValueError for other shapes."""
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f'ids have shape {list(ids.shape)}; allowed: {list(logits.shape[:-1])}, one per row of logits')
    return logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)


# 03_model/03_2_tiny_agent, cell 13
def sequence_log_probs(model, ids, temperature=1.0):
    """log p(ids[:, t+1] | ids[:, :t+1]) at the given temperature: [B, T] -> [B, T-1]."""
    check_batch(ids)
    check_positive('temperature', temperature)
    return selected_log_probs(model(ids[:, :-1]) / temperature, ids[:, 1:])
