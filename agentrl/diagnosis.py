# Made by tools/export.py from notebooks/14_faults/14_9_diagnose.py. Do not edit: change it there, then `make export`.
# Body: 4ac0545ab770f630
"""14.9 Diagnose a batch from any trainer."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches

import torch
import torch.nn.functional as F

from agentrl import (
    batch_faults,
    credit_faults,
    cut_faults,
    group_faults,
    identity_faults,
    mask_faults,
    ratio_faults,
    run_faults,
    weight_faults,
)
from agentrl.aggregation import loss_weights
from agentrl.batch_faults import IN_GROUPS
from agentrl.credit import outcome_rewards, returns_to_go

# 14_faults/14_9_diagnose, cell 2
BATCH_FIELDS = {
    'tokens': {
        'ids': 'token ids', 'owner': 'who wrote each (OWNER of 5.2, -1: padding)',
        'turn': 'call number, -1: none', 'attention_mask': '0 on padding',
        'position_ids': 'from 0 at the first token of a text', 'given_ids': 'prompts and responses, side by side',
    },
    'columns': {
        'action_mask': '1 where the predicted token is trained', 'advantages': 'also one a row',
        'logp': "the engine's log-prob, 0 where it did not sample", 'ref_logp': 'of the reference policy',
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
        'estimator': 'grpo, rloo, gae, ... (14.9.0)', 'precision': 'relative rounding of the numbers, by their dtype',
    },
}
ALL_FIELDS = tuple(name for names in BATCH_FIELDS.values() for name in names)
MASKS_OF_01 = ('action_mask', 'attention_mask', 'truncated')
LABELS = ('group', 'episode')


# 14_faults/14_9_diagnose, cell 3
class UnusableField(ValueError):
    """A field that no check can use: what is wrong, and the first row and column at which it shows."""

    def __init__(self, message, place=()):
        super().__init__(message)
        self.row, self.column = (*place, None, None)[:2]


# 14_faults/14_9_diagnose, cell 4
def shape_of(name, ids_shape, kind):
    """The shape that a field must have, given that of ids (or of action_mask, plus a column)."""
    n_rows, width = ids_shape
    return {'tokens': (n_rows, width), 'columns': (n_rows, width - 1), 'rows': (n_rows,)}[kind]


# 14_faults/14_9_diagnose, cell 5
def plain_tensor(name, value):
    """An array, list or jagged tensor as a tensor on the CPU, jagged rows padded with 0 at the right."""
    try:
        if torch.is_tensor(value) and value.is_nested:
            return torch.nn.utils.rnn.pad_sequence([row.detach().cpu() for row in value.unbind()], True)
        tensor = torch.as_tensor(value).detach().cpu()
    except Exception as error:
        raise UnusableField(f'{name} is not an array: {error}') from error
    if tensor.is_complex() or tensor.is_sparse or tensor.is_quantized:
        raise UnusableField(f'{name} is {tensor.dtype}, {tensor.layout}; allowed: dense real numbers')
    return tensor


# 14_faults/14_9_diagnose, cell 6
def read_field(name, value, shape, others=()):
    """One array as a tensor of this shape, or one of `others`; UnusableField for anything else."""
    tensor = plain_tensor(name, value)
    if tuple(tensor.shape) not in (shape, *others):
        allowed = ' or '.join(str(list(s)) for s in (shape, *others))
        raise UnusableField(f'{name} has shape {list(tensor.shape)}; allowed: {allowed}')
    if name not in MASKS_OF_01:
        return tensor
    if (strange := (tensor != 0) & (tensor != 1)).any():
        at = strange.nonzero()[0].tolist()
        raise UnusableField(
            f'{name} holds {tensor[tuple(at)].item()} at {at}; a mask holds 0 and 1 (or False and True)', at
        )
    return tensor.bool()


# 14_faults/14_9_diagnose, cell 7
def check_finite(name, tensor, where):
    """UnusableField unless `tensor` is finite where `where` is set."""
    bad = ~tensor.isfinite() & where
    if bad.any():
        at = bad.nonzero()[0].tolist()
        raise UnusableField(
            f'{name} is {tensor[tuple(at)].item()} at {at} and {int(bad.sum())} places in all; what is used must be '
            'finite. If this row failed, say so in errors', at
        )


# 14_faults/14_9_diagnose, cell 8
def codes(labels):
    """Labels of any kind, one a row, as numbers."""
    labels = [str(label) for label in (labels.tolist() if hasattr(labels, 'tolist') else labels)]
    number = {label: n for n, label in enumerate(dict.fromkeys(labels))}
    return [number[label] for label in labels]


# 14_faults/14_9_diagnose, cell 9
def read_one(name, kind, value, read):
    """A field as checks take it, given those already read; UnusableField says why it cannot be."""
    mask = read['action_mask']  # bool [B, T-1]
    ids_shape = (mask.shape[0], mask.shape[1] + 1)
    if kind == 'lists' and name != 'rerun_key' and len(value) != len(mask):
        raise UnusableField(f'{name} has {len(value)} entries; allowed: {len(mask)}, one a row')
    if name == 'loss_agg':
        return str(value).replace('-', '_')  # verl writes token-mean
    if name == 'rerun_ids':
        return plain_tensor(name, value)
    needed = cut_faults.CALL_FIELDS
    if name == 'calls' and (missing := [field for field in needed if field not in value]):
        raise UnusableField(f'calls lacks {", ".join(missing)}; it needs {", ".join(needed)}, and may have row')
    if kind not in ('tokens', 'columns', 'rows'):
        return value
    others = [ids_shape[:1]] if name == 'advantages' else []
    tensor = read_field(name, codes(value) if name in LABELS else value, shape_of(name, ids_shape, kind), others)
    if not tensor.is_floating_point():
        whole = name in LABELS or kind == 'tokens' or name in MASKS_OF_01
        return tensor if whole else tensor.double()
    healthy = torch.tensor([error is None for error in read.get('errors', [None] * len(mask))], dtype=torch.bool)
    where = healthy if tensor.dim() == 1 else healthy[:, None]
    check_finite(name, tensor, mask & where if tensor.shape == mask.shape else where)
    return tensor.double().nan_to_num(0.0, 0.0, 0.0)


# 14_faults/14_9_diagnose, cell 10
def read_mask(batch):
    """action_mask as bool [B, T-1]; UnusableField if there is none that can be used."""
    if batch.get('action_mask') is None:
        raise UnusableField(
            'a batch needs action_mask [B, T-1]; give it, or a batch of TRL or verl (from_trl, from_verl); '
            f'given: {", ".join(map(str, list(batch)[:20])) or "nothing"}'
        )
    mask = plain_tensor('action_mask', batch['action_mask'])
    if mask.dim() != 2 or not mask.numel():
        raise UnusableField(f'action_mask has shape {list(mask.shape)}; allowed: [B, T-1], neither of them 0')
    return read_field('action_mask', mask, tuple(mask.shape))


# 14_faults/14_9_diagnose, cell 11
def read_batch(batch):
    """Known fields of a mapping in the book's layout, as checks take them; unknown names; problems by field.

    A problem is an UnusableField. Without a mask nothing else can be read.
    """
    kinds = {name: kind for kind, names in BATCH_FIELDS.items() for name in names}
    unknown = [str(name) for name in batch if name not in kinds]
    read, problems = {}, {}
    try:
        read['action_mask'] = read_mask(batch)
    except UnusableField as error:
        return {}, unknown, {'action_mask': error}
    for name in sorted(kinds, key=lambda name: name != 'errors'):  # what failed need not be finite
        if name in read or batch.get(name) is None:
            continue
        try:
            read[name] = read_one(name, kinds[name], batch[name], read)
        except UnusableField as error:
            problems[name] = error
        except Exception as error:
            problems[name] = UnusableField(f'{name} cannot be read: {type(error).__name__}: {error}')
    return read, unknown, problems


# 14_faults/14_9_diagnose, cell 11
def with_guess(name, known=ALL_FIELDS):
    """An unknown name, with the field that it may be meant for."""
    close = get_close_matches(name, known, n=1, cutoff=0.85)
    return f'{name} (did you mean {close[0]}?)' if close else name


# 14_faults/14_9_diagnose, cell 13
@dataclass(frozen=True)
class Check:
    """A check: name, section, function, checks that must be green before it, fields that replace it."""

    name: str
    section: str
    function: Callable
    after: tuple = ()
    unless: tuple = ()
    result: str = 'red'  # or 'suspicious': what a finding means
    any_of: tuple = ()  # fields of which one must be there
    only: tuple = ()  # the estimators that it is for, if one is known

    def arguments(self):
        """Names of the arguments, and of those without which it cannot run."""
        parameters = inspect.signature(self.function).parameters.values()
        used = [p.name for p in parameters if p.name in ALL_FIELDS]
        return used, [p.name for p in parameters if p.default is p.empty]


# 14_faults/14_9_diagnose, cell 14
RESULTS = ('red', 'suspicious', 'green', 'not run')
MASK = ('action mask', 'sampled mask', 'padding')
CHECKS = (
    Check('action mask', '14.1', mask_faults.check_action_mask),
    Check('sampled mask', '14.1', batch_faults.check_scored_tokens, unless=('owner',)),
    Check('padding', '14.1', mask_faults.check_padding, after=('action mask', 'sampled mask')),
    Check('ids', '14.9.0', batch_faults.check_given_ids),
    Check('left padding', '14.9.0', batch_faults.check_left_padding),
    Check('positions', '14.9.0', batch_faults.check_positions, after=('left padding',)),
    Check('engine zeros', '14.9.0', batch_faults.check_engine_zeros, after=MASK, unless=('owner',)),
    Check('log-prob range', '14.9.0', batch_faults.check_log_prob_range, any_of=('logp', 'train_logp', 'ref_logp')),
    Check('reference', '14.9.0', batch_faults.check_reference),
    Check('critic', '14.9.0', batch_faults.check_critic, after=MASK),
    Check('nothing to learn', '14.9.0', batch_faults.check_silent, after=MASK, result='suspicious'),
    Check('token rewards', '14.2', credit_faults.check_token_rewards, after=MASK),
    Check('returns', '14.2', credit_faults.check_returns, after=(*MASK, 'token rewards'), unless=('values',)),
    Check('GAE', '14.2', credit_faults.check_token_gae, after=(*MASK, 'token rewards'), only=('gae',)),
    Check('token ids', '14.3', identity_faults.check_token_ids, after=MASK),
    Check('call contexts', '14.3', identity_faults.check_call_contexts, after=(*MASK, 'token ids')),
    Check(
        'first ratio', '14.3', identity_faults.check_first_ratio, after=(*MASK, 'token ids', 'call contexts')
    ),
    Check('trained once', '14.3', identity_faults.check_trained_once, after=MASK),
    Check('cut calls', '14.4', cut_faults.check_cut_calls),
    Check('timeouts', '14.4', cut_faults.check_timeouts, after=(*MASK, 'token rewards')),
    Check('estimator', '14.9.0', batch_faults.check_estimator, after=(*MASK, 'token rewards')),
    Check('group spread', '14.5', group_faults.check_group_spread, after=(*MASK, 'estimator'), only=IN_GROUPS),
    Check('errored rows', '14.5', group_faults.check_errored_rows, after=MASK, only=IN_GROUPS),
    Check('sequence ratio', '14.6', ratio_faults.check_sequence_ratio, after=MASK),
    Check('sampler gap', '14.9.0', batch_faults.check_sampler_gap, after=MASK),
    Check('copied log-probs', '14.9.0', batch_faults.check_copied_log_probs, after=MASK, result='suspicious'),
    Check('lower clip', '14.6', batch_faults.check_raised_weights, after=MASK),
    Check('weight range', '14.9.0', batch_faults.check_weight_range, after=(*MASK, 'lower clip')),
    Check('twins', '14.9.0', batch_faults.check_twins, after=MASK),
    Check('token weights', '14.7', weight_faults.check_token_weights, after=MASK),
    Check('fan-out', '14.7', weight_faults.check_fan_out, after=MASK, only=IN_GROUPS),
    Check('lost rollouts', '14.8', run_faults.check_lost_rollouts),
    Check('rerun', '14.8', run_faults.check_rerun),
    Check('quota errors', '14.8', run_faults.check_quota_errors),
)


# 14_faults/14_9_diagnose, cell 15
QUESTIONS = {
    'the mask': MASK,
    'the advantages': ('estimator', 'group spread', 'GAE', 'returns', 'errored rows'),
}


# 14_faults/14_9_diagnose, cell 16
@dataclass
class Report:
    """What `diagnose` found: a line a check, the layout that was read, and names that were not used."""

    lines: list = field(default_factory=list)
    layout: str = 'book'
    unused: list = field(default_factory=list)

    def names(self, result):
        """Names of the checks with this result: 'red', 'suspicious', 'green' or 'not run'."""
        return [line['check'] for line in self.lines if line['result'] == result]

    def open_questions(self):
        """Which of QUESTIONS no check answered, with what its checks need: {question: text}."""
        lines = {line['check']: line for line in self.lines}
        judged = ('red', 'suspicious', 'green')
        return {
            question: '; or '.join(dict.fromkeys(
                lines[name]['evidence'] for name in names if name in lines and lines[name]['evidence']
            ))
            for question, names in QUESTIONS.items()
            if not any(name in lines and lines[name]['result'] in judged for name in names)
        }

    @property
    def verdict(self):
        """'sick', 'healthy' or 'not enough to say'."""
        if self.names('red') and self.layout != 'none':
            return 'sick'
        return 'not enough to say' if self.layout == 'none' or self.open_questions() else 'healthy'

    @property
    def healthy(self):
        """No check is red, and both the mask and the advantages were judged."""
        return self.verdict == 'healthy'

    def table(self):
        """All lines as a table: check, section, result, fault, evidence, row, column."""
        import pandas as pd

        columns = ['check', 'section', 'result', 'fault', 'evidence', 'row', 'column']
        return pd.DataFrame(self.lines, columns=columns).astype({'row': 'Int64', 'column': 'Int64'})

    def summary(self):
        count = {result: len(self.names(result)) for result in RESULTS}
        unused = f'; not used: {", ".join(self.unused)}' * bool(self.unused)
        counts = ', '.join(f'{n} {result}' for result, n in count.items())
        return f'{self.layout} layout, {self.verdict}: {counts}{unused}'

    def __repr__(self):
        text = [self.summary()]
        for line in sorted(self.lines, key=lambda line: RESULTS.index(line['result'])):
            what = ': '.join(part for part in (line['fault'], line['evidence']) if part)
            place = '' if line['row'] is None else f' (row {line["row"]}, column {line["column"]})'
            text.append(f'{line["result"]:11}{line["section"]:7}{line["check"]:17}{what}{place}')
        text += [f'open: {question}: {needs}' for question, needs in self.open_questions().items()]
        return '\n'.join(text)

    def _repr_html_(self):
        table = self.table().astype(object).fillna('').to_html(index=False, escape=True)
        return f'<p>{self.summary()}</p>{table}'


# 14_faults/14_9_diagnose, cell 17
def new_line(check, section, result, fault='', evidence='', row=None, column=None):
    """A line of a report."""
    return {'check': check, 'section': section, 'fault': fault, 'row': row, 'column': column,
            'result': result, 'evidence': evidence}


# 14_faults/14_9_diagnose, cell 17
def run_check(check, read, results, problems=()):
    """One line of a report: run the check, or say why it is not run. A check that crashes is a red line."""
    names, needed = check.arguments()
    missing = [f'{name} (unusable)' if name in problems else name for name in needed if name not in read]
    if check.any_of and not any(name in read for name in check.any_of):
        missing.append(' or '.join(check.any_of))
    better = [name for name in check.unless if name in read]
    red = [name for name in check.after if results.get(name) == 'red']
    why = (
        f'needs {", ".join(missing)}' if missing
        else f'{better[0]} is given, another check uses it' if better
        else f'means nothing while {red[0]} is red' if red
        else f'not for {estimator}' if check.only and (estimator := read.get('estimator')) not in (None, *check.only)
        else ''
    )
    if why:
        return new_line(check.name, check.section, 'not run', evidence=why)
    try:
        found = check.function(**{name: read[name] for name in names if name in read})
    except Exception as error:
        return new_line(check.name, check.section, 'red', 'the check could not read its fields',
                        f'{type(error).__name__}: {error}')
    if found is None:
        return new_line(check.name, check.section, 'green')
    return new_line(check.name, check.section, check.result, **asdict(found))


# 14_faults/14_9_diagnose, cell 18
HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


# 14_faults/14_9_diagnose, cell 19
def rounding_of(fields):
    """Relative rounding of the coarsest log-probs, values, weights or advantages, by dtype or by their digits."""
    worst = 1e-6
    for name in ('advantages', 'logp', 'train_logp', 'values', 'weights', 'returns'):
        x = fields.get(name)
        if torch.is_tensor(x) and x.is_floating_point() and not x.is_nested and x.layout == torch.strided:
            x = x.detach().flatten()[:: max(1, x.numel() // 200_000)].cpu()  # a sample is enough
            x = x[x != 0]
            for dtype, eps in HALF.items():
                if x.dtype == dtype or x.unique().numel() > 8 and (x.to(dtype).to(x.dtype) == x).all():
                    worst = max(worst, eps)
    return worst


# 14_faults/14_9_diagnose, cell 20
def diagnose(batch, **more):
    """Run every check for which a batch suffices: a Report, whatever the input is.

    batch: BATCH_FIELDS in the book's layout, or a batch of TRL's GRPOTrainer or of verl (see from_trl,
    from_verl), of tensors, arrays or lists; `more` adds fields or overrides them. Fields that cannot be used
    are red lines, and so are checks that crash.
    """
    try:
        layout, fields = read_layout(batch)
        fields = fields | more
    except Exception as error:
        evidence = f'{type(batch).__name__}: {str(error)[:200]}; allowed: a mapping of names to arrays'
        return Report([new_line('input', '14.9', 'red', 'this is not a batch', evidence)], 'none')
    read, unknown, problems = read_batch(fields)
    report, results = Report(layout=layout if read else 'none', unused=[with_guess(name) for name in unknown]), {}
    for name, error in problems.items():
        report.lines.append(
            new_line(name, '14.9', 'red', 'a field cannot be used', str(error), error.row, error.column)
        )
    read = {'precision': rounding_of(fields)} | read if read else {}
    declared = batch_faults.name_estimator(read) if read else None
    read |= {'estimator': declared} if declared else {}
    for check in CHECKS:
        line = run_check(check, read, results, problems)
        results[check.name] = line['result']
        report.lines.append(line)
    return report


# 14_faults/14_9_diagnose, cell 21
TRL_NAMES = ('prompt_ids', 'prompt_mask', 'completion_ids', 'completion_mask', 'tool_mask',
             'old_per_token_logps', 'sampling_per_token_logps', 'ref_per_token_logps',
             'importance_sampling_ratio', 'num_items_in_batch')
TRL_COLUMNS = {
    'train_logp': 'old_per_token_logps', 'logp': 'sampling_per_token_logps', 'ref_logp': 'ref_per_token_logps',
    'weights': 'importance_sampling_ratio',
}


# 14_faults/14_9_diagnose, cell 22
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


# 14_faults/14_9_diagnose, cell 23
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


# 14_faults/14_9_diagnose, cell 24
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


# 14_faults/14_9_diagnose, cell 25
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


# 14_faults/14_9_diagnose, cell 26
def dump_step(policy, trajs, tok, cfg):
    """What a GRPO step of the book knows about its batch, as fields for `diagnose`."""
    from agentrl.advantages import compute_advantages  # the gym stays out of a doctor that has other patients
    from agentrl.episodes import collate
    from agentrl.packing import action_log_probs

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


# 14_faults/14_9_diagnose, cell 27
def log_calls(trajs, limit):
    """A line for each call of finished episodes. None was cut: calls too long for the gym are malformed."""
    import pandas as pd

    from agentrl.environment import parse_call
    from agentrl.step_groups import call_texts

    calls = [(row, text) for row, traj in enumerate(trajs) for text in call_texts(traj)]
    good = [parse_call(text)[0] != 'invalid' for _, text in calls]
    return pd.DataFrame({'row': [row for row, _ in calls], 'finish_reason': 'stop', 'limit': limit,
                         'tokens': [len(text.split()) for _, text in calls], 'executed': good,
                         'invalid': [not ok for ok in good]})


# 14_faults/14_9_diagnose, cell 32
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


# 14_faults/14_9_diagnose, cell 33
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


# 14_faults/14_9_diagnose, cell 34
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


# 14_faults/14_9_diagnose, cell 36
def symptom_table(links, rows=SYMPTOMS):
    """The list as a Markdown table, a row a symptom; links: {'14.9': a Markdown link} for each section."""
    causes = {}
    for row in rows:
        causes.setdefault(row['symptom'], []).append(f'{row["mechanism"]} ({links[row["section"]]})')
    head = ['| symptom | what may be behind it |', '|---|---|']
    return '\n'.join(head + [f'| {symptom} | {"; ".join(found)} |' for symptom, found in causes.items()])
