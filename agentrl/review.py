# Made by tools/export.py from notebooks/12_multi_turn/12_7_design_review.py. Do not edit: change it there, then `make export`.
# Body: a4d3a035a3db5bfd
"""12.7.1 Review a design before it is deployed."""

from functools import partial

import torch

from agentrl.arms import EVALUATION, STEPS, Study, policy_from, train_arm
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.context import (
    CONTEXTS,
    ContextEpisode,
    call_batch,
    mask_observations,
    pick,
    run_contexts,
    with_samples,
)
from agentrl.environment import make_env
from agentrl.episodes import OWNER
from agentrl.exercises import exercise
from agentrl.sampling import draw_tasks
from agentrl.tasks import make_tasks, randomize_names
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, heldout_stats, train_rl


# 12_multi_turn/12_7_design_review, cell 2
def start_behind(episode, calls):
    """Make these calls in a fresh episode, as if the policy had: they count as turns; returns the episode."""
    for call in calls:
        ids = episode.tok.encode(f'<call> {call} </call>')
        episode.act(ids, [0.0] * len(ids))
    return episode


# 12_multi_turn/12_7_design_review, cell 2
def late_rollout(model, tasks, tok, cfg, generator, context, history):
    """One finished episode a task that begins behind the calls of `history`; its samples are its own calls."""
    named = [randomize_names(task, generator) for task in tasks]
    episodes = [start_behind(ContextEpisode(make_env(cfg), task, tok, cfg.max_turns, model.max_len, context),
                             history) for task in named]
    noise = torch.rand(len(tasks), model.max_len, generator=generator, dtype=torch.float64)
    run_contexts(model, episodes, cfg.temperature, noise)
    return [with_samples(episode, len(history)) for episode in episodes]


# 12_multi_turn/12_7_design_review, cell 4
FIELDS = ('max_turns', 'context', 'history', 'length')                 # of a situation
READ = build_tokenizer(make_tasks('all')).stoi['read']


# 12_multi_turn/12_7_design_review, cell 4
def pin_read(ids, owner, turn, k, keep_obs):
    """View before call k: as `mask_observations`, but what the last `read` showed is kept as well."""
    reads = [when for token, who, when in zip(ids, owner, turn, strict=True)
             if token == READ and who == OWNER['policy'] and when < k]
    oldest, pinned = k - keep_obs, max(reads, default=None)
    return pick(ids, owner, turn, [t for t, (who, when) in enumerate(zip(owner, turn, strict=True))
                                   if when < k and (who != OWNER['tool'] or when >= oldest or when == pinned)])


VIEWS = {
    'full': CONTEXTS['full'],
    'keep 3': partial(mask_observations, keep_obs=3),
    'keep 3 and the read': partial(pin_read, keep_obs=3),
}
HISTORIES = {
    'nothing': lambda n: (),
    'tests': lambda n: ('test',) * n,
    'read, tests': lambda n: ('read',) + ('test',) * (n - 1),
}
SITUATIONS = [(6, 'full', 'nothing', 0)] + [
    (12, context, history, length) for context in VIEWS
    for history in HISTORIES for length in ((0,) if history == 'nothing' else (1, 4, 8))]


# 12_multi_turn/12_7_design_review, cell 4
def review_row(policy, seed, max_turns, context, history, length):
    """Behaviour of held-out episodes in a situation; `own_` counts leave out the calls of the history."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(EVALUATION['seed'] + seed)
    copies = [task for task in make_tasks('heldout') for _ in range(EVALUATION['samples'])]
    calls, situation = HISTORIES[history](length), (max_turns, context, history, length)
    trajs = late_rollout(policy, copies, tok, RLConfig(max_turns=max_turns), rng, VIEWS[context], calls)
    views = [len(sample.ids) - int(sample.action_mask.sum()) for traj in trajs for sample in traj.samples]
    return dict(zip(FIELDS, situation, strict=True)) | heldout_stats(make_tasks('heldout'), trajs) | {
        'own_reads': sum(traj.info['n_reads'] for traj in trajs) / len(trajs) - calls.count('read'),
        'own_turns': sum(len(traj.samples) for traj in trajs) / len(trajs),
        'seen_mean': sum(views) / len(views), 'seen_max': max(views)}


# 12_multi_turn/12_7_design_review, cell 6
def no_history(generator):
    """Always the start of an episode."""
    return ()


# 12_multi_turn/12_7_design_review, cell 6
def random_history(generator, longest=8):
    """A history of HISTORIES of 1 to `longest` calls (or of none), each kind with the same chance."""
    kind, n = (int(torch.randint(m, (), generator=generator)) for m in (len(HISTORIES), longest))
    return list(HISTORIES.values())[kind](n + 1)


STARTS = {'the start': no_history, 'anywhere': random_history}


# 12_multi_turn/12_7_design_review, cell 6
def rehearsed_step(policy, tasks, tok, cfg, generator, env_factory=make_env, context=VIEWS['keep 3'],
                   draw_history=no_history):
    """A `sample` for train_rl: groups of episodes under a context policy, each group behind one history."""
    return [traj for task in draw_tasks(tasks, cfg, generator) for traj in late_rollout(
        policy, [task] * cfg.group_size, tok, cfg, generator, context, draw_history(generator))]


# 12_multi_turn/12_7_design_review, cell 6
@cached
def train_review(context, starts, cfg, base_seed=0, steps=STEPS):
    """Train the RL base in one of VIEWS, behind histories of one of STARTS: dict of weights and history."""
    tok = build_tokenizer(make_tasks('all'))
    policy = make_rl_base(tok, base_seed)
    sample = partial(rehearsed_step, context=VIEWS[context], draw_history=STARTS[starts])
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps, sample=sample, prepare=call_batch)
    return {'weights': policy.state_dict(), 'history': history}


# 12_multi_turn/12_7_design_review, cell 7
REVIEW_ARMS = {
    'as planned': {},
    'as deployed': {'context': 'keep 3', 'starts': 'the start'},
    'rehearsed': {'context': 'keep 3', 'starts': 'anywhere'},
    'rehearsed, read kept': {'context': 'keep 3 and the read', 'starts': 'anywhere'},
}


# 12_multi_turn/12_7_design_review, cell 7
def train_and_review(arm, seed=0, base_seed=0):
    """A run of REVIEW_ARMS; its 'heldout' is a list of rows, one for each of SITUATIONS."""
    settings = REVIEW_ARMS[arm]
    run = (train_review(**settings, cfg=RLConfig(max_turns=12, seed=seed), base_seed=base_seed) if settings
           else train_arm('default', seed, base_seed))
    policy = policy_from(run['weights'])
    return run | {'heldout': [review_row(policy, seed, *situation) for situation in SITUATIONS]}


REVIEW = Study('review', REVIEW_ARMS, train_and_review)


# 12_multi_turn/12_7_design_review, cell 8
SHIFTS = {                                          # shift: what differs, what both have, what is new
    'budget': ('max_turns', {'context': 'full', 'history': 'nothing'}, 12),
    'late state': ('length', {'max_turns': 12, 'context': 'full', 'history': 'read, tests'}, 8),
    'placeholders': ('context', {'max_turns': 12, 'history': 'tests', 'length': 4}, 'keep 3'),
    'forgetting': ('context', {'max_turns': 12, 'history': 'read, tests', 'length': 4}, 'keep 3'),
}


# 12_multi_turn/12_7_design_review, cell 8
@exercise
def check_pair(attempt):
    """Try `attempt(shift)` -> two of SITUATIONS on every shift: 'right', or what is wrong, in words."""
    for shift, (field, shared, new) in SHIFTS.items():
        pair = [dict(zip(FIELDS, situation, strict=True)) for situation in attempt(shift)]
        if len(pair) != 2 or any(tuple(one.values()) not in SITUATIONS for one in pair):
            return f'{shift}: {attempt(shift)!r} is not a pair of SITUATIONS'
        if (differ := [name for name in FIELDS if pair[0][name] != pair[1][name]]) != [field]:
            return f'{shift}: the two differ in {", ".join(differ) or "nothing"}, but should in {field} alone'
        for name, value in (shared | {field: new}).items():
            if pair[0][name] != value:
                return f'{shift}: take {name}={value!r} for the situation with the shift, not {pair[0][name]!r}'
    return 'right: four pairs, each of which differs in its own shift alone'
