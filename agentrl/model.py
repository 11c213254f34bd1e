# Made by tools/export.py from notebooks/03_model/03_2_tiny_agent.py. Do not edit: change it there, then `make export`.
# Body: 86444d013af5b691
"""3.2 Build TinyAgent and read each token once."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn


# 03_model/03_2_tiny_agent, cell 2
class Block(nn.Module):
    """Pre-norm transformer block: x [..., d] -> [..., d]."""

    def __init__(self, d, d_mlp, dtype):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, dtype=dtype), nn.LayerNorm(d, dtype=dtype)
        self.query, self.value = nn.Linear(d, d, dtype=dtype), nn.Linear(d, d, dtype=dtype)
        self.key = nn.Linear(d, d, bias=False, dtype=dtype)
        self.out = nn.Linear(d, d, dtype=dtype)
        self.mlp = nn.Sequential(nn.Linear(d, d_mlp, dtype=dtype), nn.ReLU(),
                                 nn.Linear(d_mlp, d, dtype=dtype))

    def forward(self, x, attend):
        h = self.norm1(x)
        x = x + self.out(attend(self.query(h), self.key(h), self.value(h)))
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
    """Keys and values read so far: kv [layers, 2, R, H, width, d/H], lengths [R]."""
    kv: torch.Tensor
    lengths: torch.Tensor

    def select(self, rows):
        """The cache of some of its rows."""
        return KVCache(self.kv[:, :, rows], self.lengths[rows])

    def widen(self, width):
        """The same cache with room for at least `width` tokens a row, in steps of 64."""
        extra = 0 if width <= self.kv.shape[4] else -(-width // 64) * 64 - self.kv.shape[4]
        return self if extra == 0 else replace(self, kv=F.pad(self.kv, (0, 0, 0, extra)))


# 03_model/03_2_tiny_agent, cell 5
@dataclass
class NewTokens:
    """All rows' new tokens end to end: ids, row, offset in its news, position [N]; mask [R, 1, n, width]."""
    ids: torch.Tensor
    row: torch.Tensor
    offset: torch.Tensor
    position: torch.Tensor
    mask: torch.Tensor


# 03_model/03_2_tiny_agent, cell 5
def lay_out(new_ids, lengths):
    """NewTokens of a list of ids a row (some may be empty), for rows that have read `lengths` [R] tokens."""
    n_new = torch.tensor([len(ids) for ids in new_ids])                           # [R]
    row = torch.arange(len(new_ids)).repeat_interleave(n_new)                     # [N]
    offset = torch.arange(len(row)) - (n_new.cumsum(0) - n_new)[row]              # [N]
    queries = lengths[:, None] + torch.arange(int(n_new.max()))                   # [R, n]
    keys = torch.arange(int((lengths + n_new).max()))                             # [width]
    return NewTokens(ids=torch.tensor([i for ids in new_ids for i in ids]), row=row, offset=offset,
                     position=lengths[row] + offset, mask=(keys <= queries[..., None])[:, None])


# 03_model/03_2_tiny_agent, cell 7
def attend_to_cache(kv, new, n_heads):
    """Attention over a layer's cache kv [2, R, H, width, d/H]; keys and values of new tokens go in first."""
    n_rows, _, n, width = new.mask.shape

    def attend(q, k, v):                                                          # each [N, d]
        for store, x in zip(kv, (k, v), strict=True):
            store[new.row, :, new.position] = x.unflatten(-1, (n_heads, -1))
        spread = q.new_zeros(n_rows, n, q.shape[-1])                              # [R, n, d]
        spread[new.row, new.offset] = q
        seen = F.scaled_dot_product_attention(
            split_heads(spread, n_heads), kv[0, :, :, :width], kv[1, :, :, :width], attn_mask=new.mask)
        return merge_heads(seen)[new.row, new.offset]                             # [N, d]

    return attend


# 03_model/03_2_tiny_agent, cell 8
class TinyAgent(nn.Module):
    """Decoder-only transformer policy: `vocab_size` words, up to `max_len` tokens, on the CPU in float64."""
    def __init__(self, vocab_size, d=64, n_layers=3, n_heads=4, d_mlp=192, max_len=256,
                 dtype=torch.float64, seed=0):
        super().__init__()
        check_heads(d, n_heads)
        self.max_len, self.vocab_size, self.n_heads = max_len, vocab_size, n_heads
        self.tokens, self.positions = (nn.Embedding(n, d, dtype=dtype) for n in (vocab_size, max_len))
        self.blocks = nn.ModuleList(Block(d, d_mlp, dtype) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d, dtype=dtype)
        self.head = nn.Linear(d, vocab_size, bias=False, dtype=dtype)
        init_weights(self, torch.Generator().manual_seed(seed))

    def forward(self, ids):
        """Logits [B, T, V] for the token after each of ids [B, T]."""
        check_ids(self, ids, ids.shape[1])
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]               # [B, T, d]
        for block in self.blocks:
            x = block(x, attend_causally(self.n_heads))
        return self.head(self.norm(x))

    def empty_cache(self, n_rows):
        """A cache for `n_rows` episodes of which nothing has been read."""
        d_head = self.head.in_features // self.n_heads
        kv = torch.zeros(len(self.blocks), 2, n_rows, self.n_heads, 0, d_head, dtype=self.head.weight.dtype)
        return KVCache(kv, torch.zeros(n_rows, dtype=torch.long))

    @torch.no_grad()
    def extend(self, new_ids, cache):
        """Read new ids (a list a row, some empty); logits [R', V] of rows that got some, and the cache."""
        new = lay_out(new_ids, cache.lengths)
        cache = cache.widen(new.mask.shape[-1])
        check_ids(self, new.ids, new.mask.shape[-1])
        x = self.tokens(new.ids) + self.positions(new.position)                   # [N, d]
        for kv, block in zip(cache.kv, self.blocks, strict=True):
            x = block(x, attend_to_cache(kv, new, self.n_heads))
        n_new = new.row.bincount(minlength=len(new_ids))                          # [R]
        last = (n_new.cumsum(0) - 1)[n_new > 0]                                   # [R']
        return self.head(self.norm(x[last])), replace(cache, lengths=cache.lengths + n_new)


# 03_model/03_2_tiny_agent, cell 9
def init_weights(model, rng):
    """Normal weights, deviation 0.02 to 0.12 by width, residual outputs over sqrt(2 layers); zero biases."""
    residual = {id(m) for block in model.blocks for m in (block.out, block.mlp[2])}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02, generator=rng)
        if isinstance(module, nn.Linear):
            shrink = (2 * len(model.blocks)) ** -0.5 if id(module) in residual else 1.0
            nn.init.normal_(module.weight, std=shrink * module.in_features ** -0.5, generator=rng)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# 03_model/03_2_tiny_agent, cell 9
def check_heads(d, n_heads):
    """ValueError if the width does not divide into heads."""
    if d % n_heads:
        raise ValueError(f'd={d} must be a multiple of n_heads={n_heads}')


# 03_model/03_2_tiny_agent, cell 9
def check_ids(model, ids, length):
    """ValueError if the batch is longer than the context or holds a word the model has no row for."""
    if length > model.max_len:
        raise ValueError(f'{length} tokens do not fit into the context of {model.max_len}; '
                         'shorten the episode or build TinyAgent with a larger max_len')
    if ids.numel() and int(ids.max()) >= model.vocab_size:
        raise ValueError(f'token id {int(ids.max())} is outside the vocabulary of {model.vocab_size} words; '
                         'build TinyAgent(len(tok)) from the tokenizer that made these ids')


# 03_model/03_2_tiny_agent, cell 12
def selected_log_probs(logits, ids):
    """log softmax(logits)[ids]: logits [..., V], ids [...] -> [...]."""
    return logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)


# 03_model/03_2_tiny_agent, cell 12
def sequence_log_probs(model, ids, temperature=1.0):
    """log p(ids[:, t+1] | ids[:, :t+1]) at the given temperature: [B, T] -> [B, T-1]."""
    return selected_log_probs(model(ids[:, :-1]) / temperature, ids[:, 1:])
