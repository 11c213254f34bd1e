# Made by tools/export.py from notebooks/14_faults/14_9_diagnose.py. Do not edit: change it there, then `make export`.
# Body: 6dccb80452e0ad56
"""14.9 Diagnose a batch from any trainer."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch

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
from agentrl.batch_fields import ALL_FIELDS, read_batch, rounding_of, with_guess
from agentrl.credit import outcome_rewards, returns_to_go
from agentrl.layouts import read_layout


# 14_faults/14_9_diagnose, cell 2
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


# 14_faults/14_9_diagnose, cell 3
RESULTS = ('red', 'suspicious', 'green', 'not run')
MASK = ('action mask', 'sampled mask', 'padding')


# 14_faults/14_9_diagnose, cell 4
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


# 14_faults/14_9_diagnose, cell 5
QUESTIONS = {
    'the mask': MASK,
    'the advantages': ('estimator', 'group spread', 'GAE', 'returns', 'errored rows'),
}


# 14_faults/14_9_diagnose, cell 5
def questions_left(lines):
    """Which of QUESTIONS no check answered, with what its checks need: {question: text}."""
    lines = {line['check']: line for line in lines}
    judged = ('red', 'suspicious', 'green')
    return {
        question: '; or '.join(dict.fromkeys(
            lines[name]['evidence'] for name in names if name in lines and lines[name]['evidence']
        ))
        for question, names in QUESTIONS.items()
        if not any(name in lines and lines[name]['result'] in judged for name in names)
    }


# 14_faults/14_9_diagnose, cell 6
def line_text(line):
    """A line of a report as text: result, section, check, what was found, and where."""
    what = ': '.join(part for part in (line['fault'], line['evidence']) if part)
    place = '' if line['row'] is None else f' (row {line["row"]}, column {line["column"]})'
    return f'{line["result"]:11}{line["section"]:7}{line["check"]:17}{what}{place}'


# 14_faults/14_9_diagnose, cell 6
def report_text(report):
    """A report as text, what is red first, and at the end the questions that are open."""
    lines = sorted(report.lines, key=lambda line: RESULTS.index(line['result']))
    left = [f'open: {question}: {needs}' for question, needs in questions_left(lines).items()]
    return '\n'.join([report.summary(), *map(line_text, lines), *left])


# 14_faults/14_9_diagnose, cell 6
def lines_table(lines):
    """The lines of a report as a data frame, `row` and `column` as whole numbers that may be missing."""
    import pandas as pd

    columns = ['check', 'section', 'result', 'fault', 'evidence', 'row', 'column']
    return pd.DataFrame(lines, columns=columns).astype({'row': 'Int64', 'column': 'Int64'})


# 14_faults/14_9_diagnose, cell 7
@dataclass
class Report:
    """What `diagnose` found: a line a check, the layout that was read, and names that were not used."""

    lines: list = field(default_factory=list)
    layout: str = 'book'
    unused: list = field(default_factory=list)

    def names(self, result):
        """Names of the checks with this result: 'red', 'suspicious', 'green' or 'not run'."""
        return [line['check'] for line in self.lines if line['result'] == result]

    @property
    def verdict(self):
        """'sick', 'healthy' or 'not enough to say'."""
        if self.names('red') and self.layout != 'none':
            return 'sick'
        return 'not enough to say' if self.layout == 'none' or questions_left(self.lines) else 'healthy'

    @property
    def healthy(self):
        """No check is red, and both the mask and the advantages were judged."""
        return self.verdict == 'healthy'

    def table(self):
        """All lines as a table: check, section, result, fault, evidence, row, column."""
        return lines_table(self.lines)

    def summary(self):
        unused = f'; not used: {", ".join(self.unused)}' * bool(self.unused)
        counts = ', '.join(f'{len(self.names(result))} {result}' for result in RESULTS)
        return f'{self.layout} layout, {self.verdict}: {counts}{unused}'

    def __repr__(self):
        return report_text(self)

    def _repr_html_(self):
        table = self.table().astype(object).fillna('').to_html(index=False, escape=True)
        return f'<p>{self.summary()}</p>{table}'


# 14_faults/14_9_diagnose, cell 8
def new_line(check, section, result, fault='', evidence='', row=None, column=None):
    """A line of a report."""
    return {'check': check, 'section': section, 'fault': fault, 'row': row, 'column': column,
            'result': result, 'evidence': evidence}


# 14_faults/14_9_diagnose, cell 8
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


# 14_faults/14_9_diagnose, cell 9
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
        return Report([new_line('input', '14.9.2', 'red', 'this is not a batch', evidence)], 'none')
    read, unknown, problems = read_batch(fields)
    report, results = Report(layout=layout if read else 'none', unused=[with_guess(name) for name in unknown]), {}
    for name, error in problems.items():
        report.lines.append(
            new_line(name, '14.9.1', 'red', 'a field cannot be used', str(error), error.row, error.column)
        )
    read = {'precision': rounding_of(fields)} | read if read else {}
    declared = batch_faults.name_estimator(read) if read else None
    read |= {'estimator': declared} if declared else {}
    for check in CHECKS:
        line = run_check(check, read, results, problems)
        results[check.name] = line['result']
        report.lines.append(line)
    return report


# 14_faults/14_9_diagnose, cell 10
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


# 14_faults/14_9_diagnose, cell 11
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
