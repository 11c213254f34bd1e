# Made by tools/export.py from notebooks/05_trajectories/05_5_rl_base.py. Do not edit: change it there, then `make export`.
# Body: 339a3d29219a1e45
"""5.5 Start from a policy that mostly fails, in useful ways."""

import torch
from tqdm import tqdm

from agentrl.cache import cached
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import MAX_CALL_TOKENS, Episode, collate, length_buckets, make_trajectory, take_rows
from agentrl.model import TinyAgent
from agentrl.packing import action_log_probs
from agentrl.tasks import EDIT_OPS, make_tasks, randomize_names
from agentrl.tokenizer import CALL, CALL_END, Tokenizer

# 05_trajectories/05_5_rl_base, cell 2
DEMONSTRATED = tuple(op for op in EDIT_OPS if op != 'fix_return')


# 05_trajectories/05_5_rl_base, cell 2
def choose(options, rng, weights=None):
    """One of `options`, drawn with the torch.Generator `rng`."""
    weights = torch.ones(len(options)) if weights is None else torch.tensor(weights)
    return options[int(torch.multinomial(weights.double(), 1, generator=rng))]


# 05_trajectories/05_5_rl_base, cell 2
def chance(p, rng):
    """True with probability p."""
    return bool(torch.rand(1, generator=rng, dtype=torch.float64) < p)


# 05_trajectories/05_5_rl_base, cell 3
def submit_at_once(task, edits, rng):
    return ['submit']


# 05_trajectories/05_5_rl_base, cell 3
def edit_blindly(task, edits, rng):
    return [f'edit {choose(edits, rng)}', 'submit']


# 05_trajectories/05_5_rl_base, cell 3
def dither(task, edits, rng):
    """Up to six calls without a plan (one in twenty is the last), then submit: often one call too late."""
    calls = []
    while len(calls) < 6 and not (calls and chance(0.05, rng)):
        call = choose(('test', 'read', 'edit'), rng, (5.0, 2.0, 3.0))
        calls.append(f'edit {choose(edits, rng)}' if call == 'edit' else call)
    return [*calls, 'submit']


# 05_trajectories/05_5_rl_base, cell 3
def read_and_edit(task, edits, rng):
    """Read, edit (right nine times in ten if known), test, submit; now and then give up after reading."""
    if chance(0.06, rng):
        return ['read', 'submit']
    wrong = [op for op in edits if op != task.edit]
    edit = task.edit if task.edit in edits and chance(0.9, rng) else choose(wrong, rng)
    return ['read', f'edit {edit}', 'test', 'submit']


HABITS = {submit_at_once: 0.16, edit_blindly: 0.33, dither: 0.30, read_and_edit: 0.21}


# 05_trajectories/05_5_rl_base, cell 4
def spoil(words, rng):
    """A call with its middle word dropped or doubled."""
    middle = 1 + int(torch.randint(len(words) - 2, (1,), generator=rng))
    return words[:middle] + words[middle + 1:] if chance(0.5, rng) else words[:middle + 1] + words[middle:]


# 05_trajectories/05_5_rl_base, cell 4
def demonstrate(task, habit, tok, edits, rng, malformed=0.01):
    """A habit's trajectory on a task, in the real environment; spoiled calls come before the real ones."""
    episode = Episode(EditBudgetEnv(), task, tok, max_turns=12, max_len=256)
    calls = habit(task, edits, rng)
    while calls and not episode.done:
        words = [CALL, *calls[0].split(), CALL_END]
        if chance(malformed, rng):
            words = spoil(words, rng)[:MAX_CALL_TOKENS]
        else:
            calls = calls[1:]
        episode.act(tok.encode(' '.join(words)), [0.0] * len(words))
    return make_trajectory(episode)


# 05_trajectories/05_5_rl_base, cell 6
def clone_step(policy, optimizer, batch):
    """One step of cross-entropy on the action tokens of a batch; returns the loss."""
    optimizer.zero_grad()
    n_actions, total = batch['action_mask'].sum(), 0.0
    for rows in length_buckets(batch['length']):
        piece = take_rows(batch, rows)
        logp = action_log_probs(policy, piece['ids'], piece['length'], piece['action_mask'])    # [b, t-1]
        loss = -logp.sum() / n_actions
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return total


# 05_trajectories/05_5_rl_base, cell 6
def demonstrations(tasks, habits, tok, edits, n, rng):
    """A batch of n demonstrations: random tasks with fresh names, habits in the given shares."""
    named = [randomize_names(choose(tasks, rng), rng) for _ in range(n)]
    kinds = [choose(list(habits), rng, list(habits.values())) for _ in named]
    return collate([demonstrate(task, habit, tok, edits, rng)
                    for task, habit in zip(named, kinds, strict=True)], tok.pad_id)


# 05_trajectories/05_5_rl_base, cell 7
def clone(tok, edits, seed):
    """Train TinyAgent on demonstrations in two stages; returns the policy."""
    rng = torch.Generator().manual_seed(seed)
    policy, tasks = TinyAgent(len(tok), seed=seed), make_tasks('train')
    progress = tqdm(total=350, desc='RL base')
    for habits, steps, n, lr in (({read_and_edit: 1.0}, 200, 32, 3e-3), (HABITS, 150, 64, 1e-3)):
        optimizer = torch.optim.Adam(policy.parameters(), lr=lr, fused=True)
        warm_up_and_decay = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step, steps=steps: min((step + 1) / 20, 1.0, 2 * (1 - step / steps)))
        for _ in range(steps):
            loss = clone_step(policy, optimizer, demonstrations(tasks, habits, tok, edits, n, rng))
            warm_up_and_decay.step()
            progress.update()
            progress.set_postfix(loss=f'{loss:.3f}')
    progress.close()
    return policy


# 05_trajectories/05_5_rl_base, cell 8
@cached
def base_weights(vocabulary, edits, seed):
    """Weights of the cloned policy for a vocabulary (tuple of words)."""
    return clone(Tokenizer(vocabulary), edits, seed).state_dict()


# 05_trajectories/05_5_rl_base, cell 8
def make_rl_base(tok, seed=0, edits=DEMONSTRATED):
    """The RL starting policy: TinyAgent cloned from imperfect demonstrations that use only `edits`."""
    policy = TinyAgent(len(tok), seed=seed)
    policy.load_state_dict(base_weights(tok.itos, tuple(edits), seed))
    return policy
