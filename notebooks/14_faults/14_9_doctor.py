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
# # 14.9.3 Diagnose a dump from the command line
#
# A sick run is often somewhere else: on a cluster, in another environment, as files. `python -m agentrl.doctor
# PATH...` reads such dumps, one batch per file, and prints the report of 14.9 for each. It imports torch and no
# gym, and it does not trust the file: it reads with `weights_only=True`, which refuses pickled code.
#
# **Time** 10 min. **Assumes** [14.9](14_9_diagnose.ipynb). **Afterwards you can** hand a dump on disk to every
# check, and let a script act on the exit code.

# %%
#@save doctor
import argparse
import json
import sys
from pathlib import Path

import torch

from agentrl.diagnosis import Report, diagnose, new_line, questions_left

# %% [markdown]
# ## Samples as slime and miles keep them
#
# By their public sources both dump a list of samples, each with its `tokens`, a `response_length`, a `loss_mask` over
# the response, a `reward` and the engine's `rollout_log_probs`. We pad them at the right. What they call `group_index`
# is our group. The samples of this section are made by hand: no file that a run of either wrote was at hand to try.

# %%
#@save
def padded_right(rows, width, dtype):
    """Lists of numbers, padded with 0 to `width` at the right: [B, width]."""
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)


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


# %% [markdown]
# ## Reading a file
#
# `.pt` files hold a mapping of tensors, in any layout that `diagnose` knows, or samples; JSON holds the same as
# lists. Formats that need pickle, such as a `DataProto` saved whole, are refused with one line that says so.

# %%
#@save
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


def diagnose_file(path):
    """The Report on a dump, whatever the file is."""
    try:
        return diagnose(read_file(path))
    except Exception as error:
        return Report([new_line('input', '14.9.3', 'red', 'this is not a batch', str(error))], 'none')


# %% [markdown]
# ## The command
#
# The exit code is 1 if any dump is sick. Otherwise it is 2 if for any dump there is not enough to say, or it cannot be
# read, and 0 if all are healthy.

# %%
#@save
EXIT_CODES = {'healthy': 0, 'sick': 1, 'not enough to say': 2}


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

# %% [markdown]
# Three samples of one task, then the same with the loss mask shifted by one, and a file that is no dump.

# %%
import os
import tempfile

samples = [
    {'tokens': [5, 6, 7, 8 + n, 9, 9, 4], 'response_length': 5, 'loss_mask': [1, 1, 0, 0, 1], 'reward': float(n == 0),
     'rollout_log_probs': [-0.4, -0.9, 0.0, 0.0, -0.2], 'group_index': 0}
    for n in range(3)
]
shifted_samples = [sample | {'loss_mask': [0, 1, 1, 0, 0]} for sample in samples]
os.chdir(tempfile.mkdtemp())
torch.save({'rollout_id': 3, 'samples': samples}, 'rollout_3.pt')
torch.save({'rollout_id': 4, 'samples': shifted_samples}, 'rollout_4.pt')
Path('notes.pt').write_bytes(b'no dump')
for name in ('rollout_3.pt', 'rollout_4.pt', 'notes.pt'):
    report = diagnose_file(name)
    print(name, '-', report.verdict, '-', ', '.join(report.names('red')) or 'nothing red')
    print('exit code', EXIT_CODES[report.verdict])

# %% [markdown]
# ## What was seen
#
# A dump of samples alone has no advantages, so that of the first there is not enough to say, and the exit code is 2. The
# dump whose mask is shifted by one is sick, with exit code 1. The file that is no dump gets a report and no traceback.
#
# **Try it.** Add `advantages` to a dump of your own, as a mapping in the layout of 14.9, and run the command on it.
