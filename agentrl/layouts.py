# Made by tools/export.py from notebooks/14_faults/14_9_2_layouts.py. Do not edit: change it there, then `make export`.
# Body: 8664a1f39259a6f1
"""14.9.2 Read the batches of TRL and verl."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from agentrl.batch_fields import codes

# 14_faults/14_9_2_layouts, cell 2
TRL_NAMES = ('prompt_ids', 'prompt_mask', 'completion_ids', 'completion_mask', 'tool_mask',
             'old_per_token_logps', 'sampling_per_token_logps', 'ref_per_token_logps',
             'importance_sampling_ratio', 'num_items_in_batch')
TRL_COLUMNS = {
    'train_logp': 'old_per_token_logps', 'logp': 'sampling_per_token_logps', 'ref_logp': 'ref_per_token_logps',
    'weights': 'importance_sampling_ratio',
}


# 14_faults/14_9_2_layouts, cell 3
def from_trl(batch):
    """Fields of a batch of TRL's GRPOTrainer (prompt_ids, completion_ids, ...) in the book's layout."""
    prompt, completion = (torch.as_tensor(batch[name]) for name in ('prompt_ids', 'completion_ids'))
    keep = torch.as_tensor(batch['completion_mask'])
    prompt_mask = torch.as_tensor(batch.get('prompt_mask', torch.ones_like(prompt)))
    if keep.shape != completion.shape or prompt_mask.shape != prompt.shape:
        raise ValueError(
            f'completion_ids {list(completion.shape)} and completion_mask {list(keep.shape)}, prompt_ids '
            f'{list(prompt.shape)} and prompt_mask {list(prompt_mask.shape)} must agree'
        )
    tools = (
        torch.as_tensor(batch['tool_mask']) if batch.get('tool_mask') is not None else torch.ones_like(keep)
    )

    def place(x):
        return F.pad(torch.as_tensor(x), (prompt.shape[1] - 1, 0))  # [B, C] -> [B, P+C-1]

    fields = {
        'ids': torch.cat([prompt, completion], 1),
        'action_mask': place(keep * tools),
        'attention_mask': torch.cat([prompt_mask, keep], 1),
    }
    for ours, theirs in TRL_COLUMNS.items():
        if batch.get(theirs) is not None and (x := torch.as_tensor(batch[theirs])).shape == completion.shape:
            fields[ours] = place(x)
    if batch.get('advantages') is not None:
        a = torch.as_tensor(batch['advantages'])
        fields['advantages'] = a if a.dim() == 1 else place(a)
    return fields


# 14_faults/14_9_2_layouts, cell 5
VERL_COLUMNS = {
    'response_mask': 'action_mask',
    'old_log_probs': 'train_logp',
    'rollout_log_probs': 'logp',
    'ref_log_prob': 'ref_logp',
    'rollout_is_weights': 'weights',
    'advantages': 'advantages',
    'token_level_rewards': 'rewards',
    'values': 'values',
    'returns': 'returns',
}
VERL_NAMES = ('prompts', 'responses', 'input_ids', 'position_ids', 'uid', 'token_level_scores', *VERL_COLUMNS)


# 14_faults/14_9_2_layouts, cell 6
def from_verl(batch):
    """Fields of a verl batch (responses, response_mask, ...; a mapping or DataProto) in the book's layout."""
    if hasattr(batch, 'batch'):
        batch = dict(batch.batch.items()) | dict(getattr(batch, 'non_tensor_batch', {}))
    ids, responses = torch.as_tensor(batch['input_ids']), torch.as_tensor(batch['responses'])
    if ids.shape[0] != responses.shape[0] or (n_prompt := ids.shape[1] - responses.shape[1]) < 1:
        raise ValueError(
            f'input_ids {list(ids.shape)} must be a prompt and the responses {list(responses.shape)}'
        )
    fields = {'ids': ids, 'attention_mask': batch.get('attention_mask')}
    if (position := batch.get('position_ids')) is not None and torch.as_tensor(position).dim() == 2:
        fields['position_ids'] = position  # with images there are three numbers a token
    if (prompts := batch.get('prompts')) is not None:
        fields['given_ids'] = torch.cat([torch.as_tensor(prompts), responses], 1)
    if batch.get('token_level_rewards') is not None:
        fields['reward'] = torch.as_tensor(batch['token_level_rewards']).double().sum(1)
    for theirs, ours in VERL_COLUMNS.items():
        if batch.get(theirs) is not None and not (theirs == 'returns' and batch.get('values') is None):
            column = torch.as_tensor(batch[theirs])
            if column.shape != responses.shape:
                raise ValueError(
                    f'{theirs} has shape {list(column.shape)}; allowed: {list(responses.shape)}, as responses'
                )
            fields[ours] = F.pad(column, (n_prompt - 1, 0))  # [B, R] -> [B, P+R-1]
    if batch.get('uid') is not None:
        fields['group'] = torch.tensor(codes(batch['uid']))
    return fields


# 14_faults/14_9_2_layouts, cell 7
def read_layout(batch):
    """The layout of a batch by its names, and its fields in the book's layout."""
    inner = dict(batch.batch.items()) if hasattr(batch, 'batch') and not isinstance(batch, Mapping) else batch
    if 'completion_ids' in inner:
        more = {k: v for k, v in batch.items() if k not in (*TRL_NAMES, 'advantages')}
        return 'TRL', from_trl(batch) | more
    if 'response_mask' in inner and 'responses' in inner:
        known = (*VERL_NAMES, 'attention_mask')
        more = {k: v for k, v in batch.items() if k not in known} if inner is batch else {}
        return 'verl', from_verl(batch) | more
    return 'book', dict(batch)
