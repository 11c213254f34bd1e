# Made by tools/export.py from notebooks/09_grpo/09_5_speed.py. Do not edit: change it there, then `make export`.
# Body: 77ae656e8d6e21b3
"""9.5 Make a step fast by computing nothing twice and nothing for nobody."""

from contextlib import contextmanager

import torch


# 09_grpo/09_5_speed, cell 2
@contextmanager
def count_work(policy):
    """Count what a TinyAgent computes inside: a dict of calls, tokens, last block and head, a phase each."""
    phases = ('sampling', 'update')
    work = {f'{phase}: {what}': 0 for phase in phases for what in ('calls', 'tokens', 'last block', 'head')}

    def count(what, unit):
        def hook(module, inputs, output):
            work[f'{phases[torch.is_grad_enabled()]}: {what}'] += unit or output[..., 0].numel()
        return hook

    places = ((policy.blocks[0].norm1, 'calls', 1), (policy.blocks[0].norm1, 'tokens', None),
              (policy.blocks[-1].norm2, 'last block', None), (policy.head, 'head', None))
    hooks = [module.register_forward_hook(count(what, unit)) for module, what, unit in places]
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()
