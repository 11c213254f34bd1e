# Made by tools/export.py from notebooks/13_staying_alive/13_2_token_forensics.py. Do not edit: change it there, then `make export`.
# Body: b6b591f74acc770b
"""13.2 Find a collapse token by token."""

import os
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.episodes import OWNER

# 13_staying_alive/13_2_token_forensics, cell 2
TOKEN_VALUES = ('train_logp', 'rollout_logp', 'entropy', 'advantage', 'ratio', 'weight')
DUMP_COLUMNS = ('step', 'version', 'episode', 'turn', 'position', 'token', 'owner', 'mask', *TOKEN_VALUES,
                'reward', 'truncated')


# 13_staying_alive/13_2_token_forensics, cell 2
def token_table(step, version, trajs, tokens):
    """A row for each token of each episode, with DUMP_COLUMNS; what only policy tokens have is NaN elsewhere.

    tokens: the TOKEN_VALUES, [B, T-1] each, column t for token t + 1. version: updates that the sampling policy
    had seen. truncated: the episode ended without a submission.
    """
    names, rows = {code: name for name, code in OWNER.items()}, []
    for episode, traj in enumerate(trajs):
        mask = [False, *traj.action_mask.tolist()]
        table = pd.DataFrame({
            'step': step, 'version': version, 'episode': episode, 'turn': traj.turn.tolist(),
            'position': range(len(mask)), 'token': [traj.tok.itos[i] for i in traj.ids.tolist()],
            'owner': [names[code] for code in traj.owner.tolist()], 'mask': mask,
            'reward': float(traj.reward), 'truncated': not traj.info['submitted']})
        for name in TOKEN_VALUES:
            table[name] = pd.Series([float('nan'), *tokens[name][episode, :len(mask) - 1].tolist()]).where(mask)
        rows.append(table)
    return pd.concat(rows, ignore_index=True)[list(DUMP_COLUMNS)]


# 13_staying_alive/13_2_token_forensics, cell 4
def dump_path(folder, step):
    """The file of a step, `step_00007.parquet`."""
    return Path(folder) / f'step_{step:05d}.parquet'


# 13_staying_alive/13_2_token_forensics, cell 4
def write_dump(folder, table):
    """Write the table of one step; under its own name it is there whole or not at all. Returns its path.

    It is written as `<name>.part` beside it and renamed. One writer a folder.
    """
    if set(DUMP_COLUMNS) - set(table) or table['step'].nunique() != 1:
        raise ValueError(f'a dump is the table of one step with the columns {", ".join(DUMP_COLUMNS)}; given '
                         f'are {table.get("step", pd.Series()).nunique()} steps, columns {", ".join(table)}')
    path = dump_path(folder, int(table['step'].iloc[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.parquet.part')
    with part.open('wb') as file:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), file)
        file.flush()
        os.fsync(file.fileno())                         # the name must not be there before the bytes are
    os.replace(part, path)
    return path


# 13_staying_alive/13_2_token_forensics, cell 5
def read_dump(path):
    """The table of one step; ValueError that names the file if it is no whole dump of that step."""
    path = Path(path)
    try:
        table = pq.read_table(path).to_pandas()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f'{path.name} is no whole parquet file ({type(error).__name__}); delete it, or copy '
                         'it again from where the run wrote it') from error
    if missing := [name for name in DUMP_COLUMNS if name not in table]:
        raise ValueError(f'{path.name} lacks the columns {", ".join(missing)}; a dump has {", ".join(DUMP_COLUMNS)}')
    if path.name != dump_path('.', table['step'].iloc[0]).name or table['step'].nunique() != 1:
        raise ValueError(f'{path.name} holds steps {sorted(set(table["step"]))}; its name must say its step')
    return table


# 13_staying_alive/13_2_token_forensics, cell 5
def read_dumps(folder):
    """(table of all whole steps, list of the steps still being written); both may be empty."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f'{folder.name}: there is no such folder; give the one that the run writes to')
    steps = {int(found[1]) for path in folder.iterdir()
             if (found := re.fullmatch(r'step_(\d+)\.parquet', path.name))}
    parts = {int(found[1]) for path in folder.iterdir()
             if (found := re.fullmatch(r'step_(\d+)\.parquet\.part', path.name))}
    tables = [read_dump(dump_path(folder, step)) for step in sorted(steps)]
    whole = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=DUMP_COLUMNS)
    return whole, sorted(parts)


# 13_staying_alive/13_2_token_forensics, cell 7
def dumping(folder):
    """A `look` for train_lagged that writes a dump a step."""
    def look(step, version, trajs, batch, tokens):
        write_dump(folder, token_table(step, version, trajs, tokens))

    return look
