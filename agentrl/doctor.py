# Made by tools/export.py from notebooks/14_faults/14_9_doctor.py. Do not edit: change it there, then `make export`.
# Body: 46041001ad3a6e2c
"""14.9.3 Diagnose a dump from the command line."""

import argparse
import json
import sys
from pathlib import Path

import torch

from agentrl.diagnosis import Report, diagnose, new_line, questions_left


# 14_faults/14_9_doctor, cell 2
def padded_right(rows, width, dtype):
    """Lists of numbers, padded with 0 to `width` at the right: [B, width]."""
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)


# 14_faults/14_9_doctor, cell 2
def from_samples(samples):
    """Fields of a list of slime's samples (dicts) in the book's layout."""
    width = max(len(sample['tokens']) for sample in samples)
    mask, logp, scored = [], [], all(sample.get('rollout_log_probs') is not None for sample in samples)
    for n, sample in enumerate(samples):
        length = sample['response_length']
        before = [0] * (len(sample['tokens']) - length - 1)
        keep = sample.get('loss_mask') or [1] * length
        if len(keep) != length or scored and len(sample['rollout_log_probs']) != length:
            raise ValueError(f'sample {n}: loss_mask and rollout_log_probs need {length} entries, as response_length')
        mask.append(before + list(keep))
        logp.append(before + list(sample['rollout_log_probs'] if scored else []))
    fields = {
        'ids': padded_right([sample['tokens'] for sample in samples], width, torch.long),
        'attention_mask': padded_right([[1] * len(sample['tokens']) for sample in samples], width, torch.bool),
        'action_mask': padded_right(mask, width - 1, torch.bool),
    }
    if scored:
        fields['logp'] = padded_right(logp, width - 1, torch.float64)
    for ours, theirs in (('reward', 'reward'), ('group', 'group_index')):
        if all(isinstance(sample.get(theirs), (int, float)) for sample in samples):
            fields[ours] = [sample[theirs] for sample in samples]
    return fields


# 14_faults/14_9_doctor, cell 3
def read_file(path):
    """The batch in a dump: .pt (torch.save, no pickled code), .json. ValueError says why there is none."""
    path = Path(path)
    try:
        if path.suffix in ('.pt', '.pth', '.bin'):
            found = torch.load(path, map_location='cpu', weights_only=True)
        elif path.suffix == '.json':
            found = json.loads(path.read_text('utf-8'))
        else:
            raise ValueError(f'endings that are read: .pt, .pth, .bin, .json; given: {path.suffix or "none"}')
    except Exception as error:
        reason = ' '.join(str(error).split())[:160]
        hint = '; it needs pickle, which runs code: save plain tensors in a dict' if 'eights' in reason else ''
        raise ValueError(f'{path.name} cannot be read ({type(error).__name__}: {reason}){hint}') from error
    samples = found.get('samples') if isinstance(found, dict) else found
    if isinstance(samples, list) and samples and all(isinstance(s, dict) and 'tokens' in s for s in samples):
        return from_samples(samples)
    return found


# 14_faults/14_9_doctor, cell 3
def diagnose_file(path):
    """The Report on a dump, whatever the file is."""
    try:
        return diagnose(read_file(path))
    except Exception as error:
        return Report([new_line('input', '14.9.3', 'red', 'this is not a batch', str(error))], 'none')


# 14_faults/14_9_doctor, cell 4
EXIT_CODES = {'healthy': 0, 'sick': 1, 'not enough to say': 2}


# 14_faults/14_9_doctor, cell 4
def main(arguments=None):
    """Print a report for each path; the exit code: 0 healthy, 1 sick, 2 not enough to say or unreadable."""
    parser = argparse.ArgumentParser(prog='agentrl-doctor', description='Diagnose dumps of training batches.')
    parser.add_argument('paths', nargs='+', metavar='PATH', help='a dump: .pt, .pth, .bin or .json')
    parser.add_argument('--json', action='store_true', help='one JSON object a dump, a line each')
    chosen = parser.parse_args(arguments)
    codes = []
    for path in chosen.paths:
        report = diagnose_file(path)
        codes.append(EXIT_CODES[report.verdict])
        if chosen.json:
            print(json.dumps({'path': str(path), 'verdict': report.verdict, 'layout': report.layout,
                              'open': questions_left(report.lines), 'lines': report.lines}))
        else:
            print(f'{path}: {report}')
    return 1 if 1 in codes else max(codes)


if __name__ == '__main__' and '__file__' in globals():  # not in a notebook
    sys.exit(main())
