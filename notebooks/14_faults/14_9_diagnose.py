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
# # 14.9 Diagnose a batch from any trainer
#
# The checks of this chapter in one call. `diagnose` takes the tensors that you can dump from a training
# step, runs every check for which they suffice, and says of the others what they would need. We try it on
# batches of the book's own trainer, on each exhibit's wrong version, and on tensors laid out as TRL and
# verl document them. At the end hangs the plan of the museum: from a symptom to the section that explains
# it.
#
# **Time** 35 min. **Assumes** [14.1](14_1_masks.ipynb) to [14.8](14_8_runs.ipynb). **Afterwards you can**
# hand one step of your own trainer to every check, read what is red, and supply what the others lack.

# %%
#@save diagnosis
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches

import pandas as pd
import torch
import torch.nn.functional as F

from agentrl import (
    credit_faults,
    cut_faults,
    group_faults,
    identity_faults,
    mask_faults,
    ratio_faults,
    run_faults,
    weight_faults,
)
from agentrl.advantages import compute_advantages
from agentrl.aggregation import loss_weights
from agentrl.credit import outcome_rewards, returns_to_go
from agentrl.environment import parse_call
from agentrl.episodes import collate
from agentrl.packing import action_log_probs
from agentrl.step_groups import call_texts

# %% [markdown]
# ## What a batch may hold
#
# The names are those of the checks' arguments, so that a check finds its inputs by itself. The book's layout
# has T tokens and T−1 columns, column t speaking of token t+1. Padding may be left or right.

# %%
#@save
BATCH_FIELDS = {
    'tokens': {
        'ids': 'token ids', 'owner': 'who wrote each (OWNER of 5.2, -1: padding)',
        'turn': 'call number, -1: none', 'attention_mask': '0 on padding',
    },
    'columns': {
        'action_mask': '1 where the predicted token is trained', 'advantages': 'also one a row',
        'logp': "the engine's log-prob, 0 where it did not sample",
        'train_logp': "the trainer's log-prob before the update",
        'rewards': 'token rewards as the environment paid them', 'values': 'of the critic',
        'returns': 'what the critic is fitted to; without a critic, rewards to go',
        'weights': 'token importance weights', 'token_weights': 'from effective_weights (14.7)',
    },
    'rows': {
        'reward': 'of the episode', 'group': 'a code for each prompt', 'episode': 'a code for each episode',
        'truncated': 'cut by a limit that the agent does not see',
        'final_value': "the critic's value after the cut",
        'sequence_weights': 'importance weights of rows',
    },
    'lists': {
        'errors': 'None, or what went wrong, a row', 'retries': 'how often a row was tried again',
        'sampled_ids': 'ids that the engine returned, a row', 'contexts': 'ids it was given, a call of a row',
        'key': 'what names a row in every run', 'rerun_key': 'the keys of rerun_ids',
    },
    'others': {
        'calls': 'a table with a line a call (14.4)', 'rerun_ids': 'ids of a second run with the same seed',
        'gamma': 'discount', 'lam': 'of GAE', 'loss_agg': 'token_mean, ... (6.2)',
        'sequence_kind': 'sum or mean (14.6)', 'weight_cap': 'upper clip of sequence weights',
        'same_weights': 'are train_logp and logp of the same weights?',
    },
}
ALL_FIELDS = tuple(name for names in BATCH_FIELDS.values() for name in names)
MASKS_OF_01 = ('action_mask', 'attention_mask', 'truncated')

# %% [markdown]
# ## Reading it, or refusing to
#
# A diagnosis of broken input would be a fault of its own. Shapes, masks and numbers are looked at first, and
# an error names the field, the place and what is allowed. Names that look like a slip are refused as well;
# other unknown names are listed in the report and ignored.


# %%
#@save
def shape_of(name, ids_shape, kind):
    """The shape that a field must have, given that of ids (or of action_mask, plus a column)."""
    n_rows, width = ids_shape
    return {'tokens': (n_rows, width), 'columns': (n_rows, width - 1), 'rows': (n_rows,)}[kind]


def read_field(name, value, shape, others=()):
    """One array as a tensor of this shape, or one of `others`; ValueError for anything else."""
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f'{name} is not an array: {error}') from error
    if tuple(tensor.shape) not in (shape, *others):
        allowed = ' or '.join(str(list(s)) for s in (shape, *others))
        raise ValueError(f'{name} has shape {list(tensor.shape)}; allowed: {allowed}')
    if name in MASKS_OF_01 and ((tensor != 0) & (tensor != 1)).any():
        at = ((tensor != 0) & (tensor != 1)).nonzero()[0].tolist()
        raise ValueError(
            f'{name} holds {tensor[tuple(at)].item()} at {at}; a mask holds 0 and 1 (or False and True)'
        )
    return tensor


def check_finite(name, tensor, where):
    """ValueError unless `tensor` is finite where `where` is set."""
    bad = ~tensor.isfinite() & where
    if bad.any():
        at = bad.nonzero()[0].tolist()
        raise ValueError(
            f'{name} is {tensor[tuple(at)].item()} at {at}; what is used must be finite. '
            'If this row failed, say so in errors'
        )


# %%
#@save
def codes(labels):
    """Labels of any kind, one a row, as numbers."""
    labels = [str(label) for label in (labels.tolist() if hasattr(labels, 'tolist') else labels)]
    number = {label: n for n, label in enumerate(dict.fromkeys(labels))}
    return [number[label] for label in labels]


def read_batch(batch):
    """Known fields of a mapping in the book's layout, as tensors and lists, and the unknown names."""
    kinds = {name: kind for kind, names in BATCH_FIELDS.items() for name in names}
    unknown = [str(name) for name in batch if name not in kinds]
    for name in unknown:
        if close := get_close_matches(name, [k for k in kinds if k not in batch], n=1, cutoff=0.85):
            raise ValueError(f'{name!r} is not a field of a batch; did you mean {close[0]!r}?')
    if 'action_mask' not in batch:
        raise ValueError(
            'a batch needs action_mask [B, T-1]; give it, or a batch of TRL or verl (from_trl, from_verl)'
        )
    mask = torch.as_tensor(batch['action_mask'])
    if mask.dim() != 2:
        raise ValueError(f'action_mask has shape {list(mask.shape)}; allowed: [B, T-1]')
    ids_shape = (mask.shape[0], mask.shape[1] + 1)
    read = {}
    for name, kind in kinds.items():
        if name not in batch or batch[name] is None:
            continue
        if name in ('group', 'episode'):
            batch = {**batch, name: codes(batch[name])}
        if kind in ('tokens', 'columns', 'rows'):
            others = [ids_shape[:1]] if name == 'advantages' else []
            read[name] = read_field(name, batch[name], shape_of(name, ids_shape, kind), others)
        elif kind == 'lists' and name != 'rerun_key' and len(batch[name]) != len(mask):
            raise ValueError(f'{name} has {len(batch[name])} entries; allowed: {len(mask)}, one a row')
        else:
            read[name] = batch[name]
    return finite_batch(read), unknown


# %%
#@save
def finite_batch(read):
    """The fields with what is not used set to 0; ValueError for what is used and not finite."""
    healthy = torch.tensor([error is None for error in read.get('errors', [None] * len(read['action_mask']))])
    kept = read['action_mask'].bool() & healthy[:, None]
    for name, tensor in read.items():
        if torch.is_tensor(tensor) and tensor.is_floating_point():
            where = kept if tensor.dim() == 2 and tensor.shape == kept.shape else healthy
            check_finite(name, tensor, where)
            read[name] = tensor.double().nan_to_num(0.0, 0.0, 0.0)
    for name in ('sequence_weights', 'final_value', 'reward'):
        read |= {name: read[name].double()} if name in read else {}
    if 'rerun_ids' in read:
        read['rerun_ids'] = torch.as_tensor(read['rerun_ids'])
    needed = cut_faults.CALL_FIELDS
    if 'calls' in read and (missing := [name for name in needed if name not in read['calls']]):
        raise ValueError(f'calls lacks {", ".join(missing)}; it needs {", ".join(needed)}, and may have row')
    return read


# %%
for bad in (
    {'action_mask': [[0, -1]]},
    {'action_mask': [[0, 1]], 'reward': [1.0, 2.0]},
    {'action_mask': [[1, 1]], 'adventages': [1.0]},
    {'action_mask': [[1, 1]], 'logp': [[-0.5, float('nan')]]},
    {'ids': [[1, 2]]},
):
    try:
        read_batch(bad)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## The list of checks
#
# A check runs if the batch has all arguments without a default. `after` names a check that must have come
# out green: what is computed from a wrong mask means nothing, so a red mask stops what builds on it.
# `unless` names a field which makes a weaker check superfluous.


# %%
#@save
@dataclass(frozen=True)
class Check:
    """A check: name, section, function, checks that must be green before it, fields that replace it."""

    name: str
    section: str
    function: Callable
    after: tuple = ()
    unless: tuple = ()

    def arguments(self):
        """Names of the arguments, and of those without which it cannot run."""
        parameters = inspect.signature(self.function).parameters.values()
        used = [p.name for p in parameters if p.name in ALL_FIELDS]
        return used, [p.name for p in parameters if p.default is p.empty]


# %%
#@save
RESULTS = ('red', 'green', 'not run')
MASK = ('action mask', 'sampled mask', 'padding')
CHECKS = (
    Check('action mask', '14.1', mask_faults.check_action_mask),
    Check('sampled mask', '14.1', mask_faults.check_sampled_mask, unless=('owner',)),
    Check('padding', '14.1', mask_faults.check_padding, after=('action mask', 'sampled mask')),
    Check('token rewards', '14.2', credit_faults.check_token_rewards, after=MASK),
    Check('returns', '14.2', credit_faults.check_returns, after=(*MASK, 'token rewards'), unless=('values',)),
    Check('GAE', '14.2', credit_faults.check_token_gae, after=(*MASK, 'token rewards')),
    Check('token ids', '14.3', identity_faults.check_token_ids, after=MASK),
    Check('call contexts', '14.3', identity_faults.check_call_contexts, after=(*MASK, 'token ids')),
    Check(
        'first ratio', '14.3', identity_faults.check_first_ratio, after=(*MASK, 'token ids', 'call contexts')
    ),
    Check('trained once', '14.3', identity_faults.check_trained_once, after=MASK),
    Check('cut calls', '14.4', cut_faults.check_cut_calls),
    Check('timeouts', '14.4', cut_faults.check_timeouts, after=(*MASK, 'token rewards')),
    Check('group spread', '14.5', group_faults.check_group_spread, after=MASK),
    Check('errored rows', '14.5', group_faults.check_errored_rows, after=MASK),
    Check('sequence ratio', '14.6', ratio_faults.check_sequence_ratio, after=MASK),
    Check('lower clip', '14.6', ratio_faults.check_lower_clip, after=MASK),
    Check('token weights', '14.7', weight_faults.check_token_weights, after=MASK),
    Check('fan-out', '14.7', weight_faults.check_fan_out, after=MASK),
    Check('lost rollouts', '14.8', run_faults.check_lost_rollouts),
    Check('rerun', '14.8', run_faults.check_rerun),
    Check('quota errors', '14.8', run_faults.check_quota_errors),
)

# %% [markdown]
# ## The report


# %%
#@save
@dataclass
class Report:
    """What `diagnose` found: a line a check, the layout that was read, and names that were not used."""

    lines: list = field(default_factory=list)
    layout: str = 'book'
    unused: list = field(default_factory=list)

    def names(self, result):
        """Names of the checks with this result: 'red', 'green' or 'not run'."""
        return [line['check'] for line in self.lines if line['result'] == result]

    @property
    def healthy(self):
        """No check is red. (Checks that did not run say nothing.)"""
        return not self.names('red')

    def table(self):
        """All lines as a table: check, section, result, fault, evidence, row, column."""
        columns = ['check', 'section', 'result', 'fault', 'evidence', 'row', 'column']
        return pd.DataFrame(self.lines, columns=columns).astype({'row': 'Int64', 'column': 'Int64'})

    def summary(self):
        count = {result: len(self.names(result)) for result in RESULTS}
        unused = f'; not used: {", ".join(self.unused)}' * bool(self.unused)
        return f'{self.layout} layout: ' + ', '.join(f'{n} {result}' for result, n in count.items()) + unused

    def __repr__(self):
        text = [self.summary()]
        for line in sorted(self.lines, key=lambda line: RESULTS.index(line['result'])):
            what = ': '.join(part for part in (line['fault'], line['evidence']) if part)
            place = '' if line['row'] is None else f' (row {line["row"]}, column {line["column"]})'
            text.append(f'{line["result"]:8}{line["section"]:6}{line["check"]:16}{what}{place}')
        return '\n'.join(text)

    def _repr_html_(self):
        table = self.table().astype(object).fillna('').to_html(index=False, escape=True)
        return f'<p>{self.summary()}</p>{table}'


# %%
#@save
def run_check(check, read, results):
    """One line of a report: run the check, or say why it is not run."""
    names, needed = check.arguments()
    line = {'check': check.name, 'section': check.section, 'fault': '', 'row': None, 'column': None}
    missing = [name for name in needed if name not in read]
    if missing:
        return line | {'result': 'not run', 'evidence': f'needs {", ".join(missing)}'}
    if better := [name for name in check.unless if name in read]:
        return line | {'result': 'not run', 'evidence': f'{better[0]} is given, another check uses it'}
    if red := [name for name in check.after if results.get(name) == 'red']:
        return line | {'result': 'not run', 'evidence': f'means nothing while {red[0]} is red'}
    found = check.function(**{name: read[name] for name in names if name in read})
    if found is None:
        return line | {'result': 'green', 'evidence': ''}
    return line | {'result': 'red', **asdict(found)}


def diagnose(batch, **more):
    """Run every check for which a batch suffices: a Report.

    batch: BATCH_FIELDS in the book's layout, or a batch of TRL's GRPOTrainer or of verl (see from_trl,
    from_verl), of tensors, arrays or lists; `more` adds fields or overrides them. ValueError for shapes that
    do not fit, masks that hold other numbers than 0 and 1, numbers that are used and not finite.
    """
    layout, fields = read_layout(batch)
    read, unknown = read_batch(fields | more)
    report, results = Report(layout=layout, unused=unknown), {}
    for check in CHECKS:
        line = run_check(check, read, results)
        results[check.name] = line['result']
        report.lines.append(line)
    return report


# %% [markdown]
# ## Other layouts
#
# TRL's GRPOTrainer keeps prompts (padded at the left) and completions (at the right) apart;
# `completion_mask` is 1 up to the end, and `tool_mask`, if there are tools, 0 on what they wrote. verl's
# agent loop documents `responses` with tool tokens among them and `response_mask`, 1 for generated tokens,
# 0 for observations and padding. In both, response column c is token P + c, so it belongs into our column P
# + c − 1. verl's `returns` are taken over only with a critic's `values`: without one they hold advantages.


# %%
#@save
TRL_NAMES = ('prompt_ids', 'prompt_mask', 'completion_ids', 'completion_mask', 'tool_mask',
             'old_per_token_logps', 'sampling_per_token_logps')


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
    for ours, theirs in (('train_logp', 'old_per_token_logps'), ('logp', 'sampling_per_token_logps')):
        if batch.get(theirs) is not None:
            fields[ours] = place(batch[theirs])
    if batch.get('advantages') is not None:
        a = torch.as_tensor(batch['advantages'])
        fields['advantages'] = a if a.dim() == 1 else place(a)
    return fields


# %%
#@save
VERL_COLUMNS = {
    'response_mask': 'action_mask',
    'old_log_probs': 'train_logp',
    'rollout_log_probs': 'logp',
    'advantages': 'advantages',
    'token_level_rewards': 'rewards',
    'values': 'values',
    'returns': 'returns',
}
VERL_NAMES = ('prompts', 'responses', 'input_ids', 'position_ids', 'uid', 'token_level_scores', *VERL_COLUMNS)


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


# %%
#@save
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


# %% [markdown]
# ## Our own trainer
#
# A dump of a training step of the book: sixteen episodes of the RL base and all that GRPO knows about them.
# Four checks do not run. They would need owners to be missing, or a critic, or a second run.

# %%
#@save
def dump_step(policy, trajs, tok, cfg):
    """What a GRPO step of the book knows about its batch, as fields for `diagnose`."""
    batch = collate(trajs, tok.pad_id)
    mask, n = batch['action_mask'], len(trajs)
    with torch.no_grad():
        train_logp = action_log_probs(policy, batch['ids'], batch['length'], mask, cfg.temperature)
    rewards, log_ratio = outcome_rewards(batch['reward'], mask), train_logp - batch['logp']
    return batch | {
        'attention_mask': batch['owner'] >= 0, 'train_logp': train_logp, 'same_weights': True,
        'group': torch.arange(n) // cfg.group_size, 'episode': torch.arange(n),
        'advantages': compute_advantages(batch, cfg),
        'rewards': rewards, 'returns': returns_to_go(rewards, mask),
        'sampled_ids': [traj.ids[1:][traj.action_mask].tolist() for traj in trajs],
        'contexts': [[traj.ids[:c + 1].tolist() for c in identity_faults.call_columns(traj.action_mask)]
                     for traj in trajs],
        'calls': log_calls(trajs, policy.max_len), 'errors': [None] * n, 'retries': [0] * n,
        'weights': log_ratio.exp().clamp(max=2.0), 'sequence_kind': 'mean',
        'sequence_weights': ratio_faults.SEQUENCE_RATIOS['mean'](log_ratio, mask),
        'token_weights': loss_weights(mask, cfg.loss_agg), 'loss_agg': cfg.loss_agg,
    }


def log_calls(trajs, limit):
    """A line for each call of finished episodes. None was cut: calls too long for the gym are malformed."""
    calls = [(row, text) for row, traj in enumerate(trajs) for text in call_texts(traj)]
    good = [parse_call(text)[0] != 'invalid' for _, text in calls]
    return pd.DataFrame({'row': [row for row, _ in calls], 'finish_reason': 'stop', 'limit': limit,
                         'tokens': [len(text.split()) for _, text in calls], 'executed': good,
                         'invalid': [not ok for ok in good]})


# %%
from agentrl.base import make_rl_base
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

tok, cfg = build_tokenizer(make_tasks('all')), RLConfig(group_size=8)
policy = make_rl_base(tok)
trajs = sample_groups(policy, make_tasks()[:2], tok, cfg, torch.Generator().manual_seed(0))
dump = dump_step(policy, trajs, tok, cfg)
pd.set_option('display.max_colwidth', None)
diagnose(dump)

# %% [markdown]
# One fault on purpose, the old favourite: a mask that is one column early. The checks that build on the
# mask do not speak until it is right.

# %%
print(diagnose(dump, action_mask=mask_faults.shifted(dump['action_mask'], -1)))

# %% [markdown]
# ## A batch as TRL lays it out
#
# Two prompts of different length, padded at the left; completions with a tool's answer in the middle,
# padded at the right. Beside it the same batch with `tool_mask` forgotten, which leaves the engine's zeros
# as witness.

# %%
trl = {
    'prompt_ids': [[0, 11, 12], [11, 12, 13]],
    'prompt_mask': [[0, 1, 1], [1, 1, 1]],
    'completion_ids': [[21, 22, 31, 32, 33, 34, 23, 0], [21, 31, 32, 33, 34, 35, 36, 24]],
    'completion_mask': [[1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1]],
    'tool_mask': [[1, 1, 0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0, 1]],
    'sampling_per_token_logps': [[-0.5, -0.1, 0, 0, 0, 0, -0.7, 0], [-0.9, 0, 0, 0, 0, 0, 0, -0.2]],
    'advantages': [0.7071, -0.7071],
}
more = {'reward': [1.0, 0.0], 'group': ['task a', 'task a'], 'errors': [None, None]}
print(diagnose(trl, **more).summary())
forgotten = {name: value for name, value in trl.items() if name != 'tool_mask'}
print(diagnose(forgotten, **more))

# %% [markdown]
# ## A batch as verl lays it out
#
# The same two episodes in verl's names, as for PPO, and then with the reward at the last response token of an
# episode that ends with an observation.

# %%
responses = torch.tensor(trl['completion_ids'])
answer = torch.tensor(trl['tool_mask']) * torch.tensor(trl['completion_mask'])
verl = {
    'prompts': torch.tensor(trl['prompt_ids']),
    'responses': responses,
    'response_mask': answer,
    'input_ids': torch.cat([torch.tensor(trl['prompt_ids']), responses], 1),
    'attention_mask': torch.cat([torch.tensor(trl['prompt_mask']), torch.tensor(trl['completion_mask'])], 1),
    'rollout_log_probs': torch.tensor(trl['sampling_per_token_logps'], dtype=torch.float64),
    'token_level_rewards': outcome_rewards([1.0, 0.0], answer),
    'uid': ['a', 'a'],
}
verl['old_log_probs'] = verl['rollout_log_probs'] + 0.01 * answer
print(diagnose(verl, same_weights=True).summary())
late = torch.zeros(2, 8, dtype=torch.float64)
late[0, 5] = 1.0
print(diagnose(verl | {'token_level_rewards': late}, same_weights=True))

# %% [markdown]
# ## From a symptom to its mechanism
#
# The plan of the museum, and of the rest of the book as far as it explains why runs get sick. It is data,
# so that the README and the site can draw it.


# %%
#@save
def symptoms(text):
    """Lines `symptom | mechanism | section` as a tuple of dicts."""
    lines = (line.split('|') for line in text.strip().splitlines())
    return tuple({'symptom': a.strip(), 'mechanism': b.strip(), 'section': c.strip()} for a, b, c in lines)


CURVES = symptoms("""
    reward rises, pass rate falls | the reward can be had without the task: a shortcut | 9.4
    reward rises, pass rate falls | the reward pays for something else than was wanted | 4.2
    KL explodes after a long calm | a lower clip revives collapsed ratios | 14.6
    KL explodes after a long calm | the same clip, measured in training, and its remedies | 13.1
    ratios far from 1 before any update | ids or contexts are not those that were sampled | 14.3
    ratios far from 1 before any update | tokens encoded again from text | 5.4
    ratios far from 1 before any update | scored at another temperature | 8.4
    a rare step with a huge gradient | rounding divided by rounding in a group | 14.5
    healthy loss, nothing is learned | the mask is inverted or shifted | 14.1
    most groups teach nothing | all pass or all fail | 9.1
    the gradient shrinks when many episodes are cut | the denominator counts dropped tokens | 14.7
    long episodes hardly train, or all are capped | a sum of log-ratios taken for a mean | 14.6
    values too low near a time limit | timeouts taken for terminations | 14.4
""")

# %%
#@save
BEHAVIOUR = symptoms("""
    the agent starts to write observations | the mask lets the environment in | 12.1
    the agent does not end its calls | the end of a call is left out of the mask | 6.1
    the first calls learn slowly, the more the tools say | GAE decays across observations | 14.2
    only the last call is learned | returns start anew at observations | 14.2
    episodes that end with an observation teach nothing | the reward is where the mask is not | 14.2
    credit is noisy or late | token, call or episode: three kinds of credit | 12.2
    mediocre episodes are reinforced on bad days | errors counted as reward 0 | 14.5
    the size of a penalty makes no difference | the group deviation divides it out | 9.6
    the agent gives up early | calls cost more than they bring | 12.3
    malformed calls stay | they have no price | 12.5
    malformed calls rise with the length of answers | cut calls scored as malformed | 14.4
    calls that nobody would make | cut calls executed | 14.4
    long episodes take over | an episode votes as often as it has samples | 14.7
    one kind of task takes over | tokens, not episodes, decide the share of the loss | 12.6
    some calls of an episode are over-trained | a shared prefix is trained on every branch | 14.3
""")

# %%
#@save
OPERATIONS = symptoms("""
    another micro-batch size, another result | means of pieces, not of the batch | 14.7
    another micro-batch size, another result | weights before the split: the cure | 6.2
    results depend on the length of other rows | padding in the loss | 14.1
    the same seed gives another run | rows share a generator, or depend on their neighbours | 14.8
    the same seed gives another run | a sampler whose rows own their uniforms | 5.3
    the same seed gives another run | rewards timed by the clock, on a busy machine | 4.1
    rollouts are missing | malformed arguments raise | 14.8
    whole groups vanish under load | a quota message taken as fatal | 14.8
    whole groups vanish under load | quotas, back-off and the survival of groups | 13.6
    decoding is busy, samples are few | retries that leave zombies behind | 13.3
    slow tasks disappear from training | staleness limits favour fast ones | 13.7
""")
SYMPTOMS = CURVES + BEHAVIOUR + OPERATIONS

# %%
pd.DataFrame(SYMPTOMS).set_index('symptom')

# %% [markdown]
# The README, the start page and [Start here](../00_start_here/00_0_start_here.ipynb) show it with links to the
# sections, a row a symptom.

# %%
#@save
def symptom_table(links, rows=SYMPTOMS):
    """The list as a Markdown table, a row a symptom; links: {'14.9': a Markdown link} for each section."""
    causes = {}
    for row in rows:
        causes.setdefault(row['symptom'], []).append(f'{row["mechanism"]} ({links[row["section"]]})')
    head = ['| symptom | what may be behind it |', '|---|---|']
    return '\n'.join(head + [f'| {symptom} | {"; ".join(found)} |' for symptom, found in causes.items()])


# %%
print(symptom_table({row['section']: row['section'] for row in SYMPTOMS}, SYMPTOMS[:4]))

# %% [markdown]
# ## What was seen
#
# On a dump of the book's own trainer 17 of 21 checks ran, all green; with the mask one column early one was
# red and named it, and those that need the mask waited. A batch in TRL's layout without its `tool_mask` was
# caught by the engine's zeros, one in verl's by a reward that stood where nothing is trained. What a batch
# does not contain is listed as not run: a green report says as much as its input. 14.9.1 puts every exhibit
# of the chapter into a healthy batch and counts the checks that turn red.
#
# **Try it.** Dump one step of your own trainer and hand it over. Then break one thing on purpose, such as the
# sign of a mask, and see whether you would have been told.
