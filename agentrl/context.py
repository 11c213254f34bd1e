# Made by tools/export.py from notebooks/12_multi_turn/12_4_context_management.py. Do not edit: change it there, then `make export`.
# Body: 6fa20a2a2441aacd
"""12.4 Context management changes the policy's input."""

from collections import namedtuple
from dataclasses import dataclass, field
from functools import partial
from os.path import commonprefix

import torch

from agentrl.advantages import group_advantages
from agentrl.environment import check_count, make_env, parse_call
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, Trajectory, collate, make_trajectory
from agentrl.exercises import exercise
from agentrl.gradient import keep_only
from agentrl.sampling import CachedReader, copy_tasks, draw_tasks, sample_next
from agentrl.tasks import infer_op, make_tasks, randomize_names
from agentrl.tokenizer import OBS, OBS_END, build_tokenizer
from agentrl.training import RLConfig, heldout_stats

# 12_multi_turn/12_4_context_management, cell 3
View = namedtuple('View', 'ids owner turn')  # what a call sees: three rows [T]


# 12_multi_turn/12_4_context_management, cell 3
def pick(ids, owner, turn, positions):
    """The View of the tokens at some positions of a record (three rows of equal length)."""
    return View(*([int(row[t]) for t in positions] for row in (ids, owner, turn)))


# 12_multi_turn/12_4_context_management, cell 3
def mask_observations(ids, owner, turn, k, keep_obs=None):
    """View before call k without the tool tokens of turns older than the last `keep_obs` (None: with all)."""
    check_count('k', k, least=0)
    oldest = 0 if keep_obs is None else k - check_count('keep_obs', keep_obs, least=0)
    seen = [t for t, (who, when) in enumerate(zip(owner, turn, strict=True))
            if when < k and (who != OWNER['tool'] or when >= oldest)]
    return pick(ids, owner, turn, seen)


# 12_multi_turn/12_4_context_management, cell 3
def context_view(ids, owner, turn, k, keep_obs=None):
    """The ids that call k sees under observation masking (`mask_observations`)."""
    return mask_observations(ids, owner, turn, k, keep_obs).ids


# 12_multi_turn/12_4_context_management, cell 5
def cut_head(ids, owner, turn, k, window):
    """View before call k: the prompt, and as many of the last whole turns as fit into `window` tokens."""
    check_count('k', k, least=0)
    prompt = sum(when == -1 for when in turn)
    if check_count('window', window) < prompt:
        raise ValueError(f'window={window} does not hold the prompt; use at least {prompt}')
    first = next(n for n in range(k + 1) if prompt + sum(n <= when < k for when in turn) <= window)
    return pick(ids, owner, turn, [t for t, when in enumerate(turn) if when == -1 or first <= when < k])


# 12_multi_turn/12_4_context_management, cell 7
def note_of(words):
    """The note that replaces a source, given as the words that `read` shows."""
    return infer_op(f'def f(a, k):\n    {words}') or 'no error'  # infer_op looks at these words alone


# 12_multi_turn/12_4_context_management, cell 7
def read_notes(ids, owner, turn, n_turns, tok):
    """{turn: ids of its note} for those of the first `n_turns` turns that were a `read`."""
    def said(who, j):
        return tok.decode([i for i, o, n in zip(ids, owner, turn, strict=True) if (o, n) == (OWNER[who], j)])

    return {j: tok.encode(note_of(said('tool', j))) for j in range(n_turns)
            if parse_call(said('policy', j))[0] == 'read'}


# 12_multi_turn/12_4_context_management, cell 7
def summarise(ids, owner, turn, k, tok):
    """View before call k in which each `read` observation older than the last turn is a note."""
    notes, view = read_notes(ids, owner, turn, k - 1, tok), View([], [], [])
    for token, who, when in zip(ids, owner, turn, strict=True):
        seen = [token] if when < k else []
        if who == OWNER['tool'] and when in notes:
            seen, notes[when] = notes[when], []  # where the source began
        view.ids.extend(seen), view.owner.extend([who] * len(seen)), view.turn.extend([when] * len(seen))
    return view


# 12_multi_turn/12_4_context_management, cell 9
CONTEXTS = {
    'full': partial(mask_observations, keep_obs=None),
    'keep 2': partial(mask_observations, keep_obs=2),
    'keep 1': partial(mask_observations, keep_obs=1),
    'keep 0': partial(mask_observations, keep_obs=0),
    'summary': partial(summarise, tok=build_tokenizer(make_tasks('all'))),
    'head cut': partial(cut_head, window=41),
}


# 12_multi_turn/12_4_context_management, cell 11
class ContextEpisode(Episode):
    """An Episode whose calls see a view of the record; it is cut when the view leaves no room for a call."""

    def __init__(self, env, task, tok, max_turns, max_len, context):
        super().__init__(env, task, tok, max_turns, max_len)
        self.context = context

    def next_view(self):
        """What the next call sees."""
        return self.context(self.ids, self.owner, self.turn, len(self.actions))

    def observe(self, ids, turn):
        """Append an observation if the view with it fits; cut the episode if no further call fits."""
        length, start, end = len(self.ids), self.tok.encode(OBS), self.tok.encode(OBS_END)
        self.append(turn, ('template', start), ('tool', ids), ('template', end))
        if (seen := len(self.next_view().ids)) > self.max_len:
            for row in (self.ids, self.owner, self.turn, self.logp):
                del row[length:]
        if seen + MAX_CALL_TOKENS > self.max_len:
            self.info = self.env.get_wrapper_attr('cut')('context')
            self.done = True


# 12_multi_turn/12_4_context_management, cell 13
def sample_calls(reader, views, call_end_id, temperature, noise):
    """A call for each view: lists of ids and log-probabilities; noise [R, MAX_CALL_TOKENS] in [0, 1)."""
    calls, new_ids = [([], []) for _ in views], dict(enumerate(views))
    for n in range(MAX_CALL_TOKENS):
        rows = list(new_ids)
        ids, logps = sample_next(reader.next_logits(new_ids), temperature, noise[rows, n])
        for row, token, logp in zip(rows, ids.tolist(), logps.tolist(), strict=True):
            calls[row][0].append(token), calls[row][1].append(logp)
            new_ids[row] = [token]
            if token == call_end_id:
                del new_ids[row]
        if not new_ids:
            break
    return calls


# 12_multi_turn/12_4_context_management, cell 13
def run_contexts(model, episodes, temperature, noise, reader=CachedReader):
    """Run ContextEpisodes to their end, one call each a round; noise [B, N] holds a row of uniforms each."""
    while running := [row for row, episode in enumerate(episodes) if not episode.done]:
        sampled = [episodes[row].owner.count(OWNER['policy']) for row in running]
        u = torch.stack([noise[row, n:n + MAX_CALL_TOKENS] for row, n in zip(running, sampled, strict=True)])
        views = [episodes[row].next_view().ids for row in running]
        calls = sample_calls(reader(model, len(running)), views, episodes[0].tok.call_end_id, temperature, u)
        for row, call in zip(running, calls, strict=True):
            episodes[row].act(*call)


# 12_multi_turn/12_4_context_management, cell 14
@dataclass(repr=False)
class ContextTrajectory(Trajectory):
    """A finished episode (the whole record) and its calls as samples, each in the context that it saw."""
    samples: list = field(default_factory=list, compare=False)


# 12_multi_turn/12_4_context_management, cell 14
def call_sample(traj, k, context):
    """Call k of a trajectory as one of its own: what it saw, then the call, which alone is trained on."""
    rows = [row.tolist() for row in (traj.ids, traj.owner, traj.turn)]
    view, called = context(*rows, k), (traj.owner == OWNER['policy']) & (traj.turn == k)  # [T]
    call = pick(*rows, called.nonzero()[:, 0].tolist())
    ids, owner, turn = (torch.tensor(seen + said) for seen, said in zip(view, call, strict=True))
    mask = torch.arange(len(ids)) >= len(view.ids)  # [S]
    logp = torch.zeros(len(ids), dtype=torch.float64).masked_scatter(mask, traj.logp[called[1:]])
    return Trajectory(ids, mask[1:], logp[1:], traj.reward, traj.info, owner, turn, traj.tok)


# 12_multi_turn/12_4_context_management, cell 14
def with_samples(episode, first=0):
    """The trajectory of a finished ContextEpisode, with its calls from number `first` on as samples."""
    traj = make_trajectory(episode)
    samples = [call_sample(traj, k, episode.context) for k in range(first, traj.info['n_turns'])]
    return ContextTrajectory(traj.ids, traj.action_mask, traj.logp, traj.reward, traj.info, traj.owner, traj.turn,
                             traj.tok, samples)


# 12_multi_turn/12_4_context_management, cell 15
def context_rollout_batch(model, envs, tasks, tok, max_turns, temperature, generator,
                          context=CONTEXTS['full'], reader=CachedReader):
    """One finished episode for each pair of environment and task, sampled under a context policy."""
    if len(tok) > model.vocab_size:
        raise ValueError(f'the tokenizer has {len(tok)} words but the model only {model.vocab_size}; '
                         'build TinyAgent(len(tok))')
    episodes = [ContextEpisode(env, task, tok, max_turns, model.max_len, context)
                for env, task in zip(envs, tasks, strict=True)]
    more = max(0, (max_turns + 1) * MAX_CALL_TOKENS - model.max_len)  # calls may outnumber the window
    noise = torch.cat([torch.rand(len(episodes), n, generator=generator, dtype=torch.float64)
                       for n in (model.max_len, more)], 1)  # the first as in rollout_batch
    run_contexts(model, episodes, temperature, noise, reader)
    return [with_samples(episode) for episode in episodes]


# 12_multi_turn/12_4_context_management, cell 21
def call_batch(trajs, tok, cfg):
    """All call samples as a batch, and their advantages [S, T-1]: those of their episodes in their groups."""
    batch = collate([sample for traj in trajs for sample in traj.samples], tok.pad_id)
    reward = torch.tensor([traj.reward for traj in trajs], dtype=torch.float64)  # [B]
    advantages = group_advantages(reward, cfg.group_size, cfg.std_normalize)  # [B]
    of_samples = advantages.repeat_interleave(torch.tensor([len(traj.samples) for traj in trajs]))  # [S]
    return batch, keep_only(of_samples[:, None].expand(batch['action_mask'].shape), batch['action_mask'])


# 12_multi_turn/12_4_context_management, cell 24
def context_groups(policy, tasks, tok, cfg, generator, env_factory=make_env, n=None,
                   context=CONTEXTS['full']):
    """`sample_groups` under a context policy: list of ContextTrajectory."""
    copies = copy_tasks(tasks, cfg.group_size if n is None else n)
    named = [randomize_names(task, generator) for task in copies] if cfg.fresh_names else copies
    envs = [env_factory(cfg) for _ in named]
    return context_rollout_batch(policy, envs, named, tok, cfg.max_turns, cfg.temperature, generator, context)


# 12_multi_turn/12_4_context_management, cell 24
def context_step(policy, tasks, tok, cfg, generator, env_factory=make_env, context=CONTEXTS['full']):
    """`sample_step` under a context policy: groups of `cfg.prompts_per_step` tasks."""
    return context_groups(policy, draw_tasks(tasks, cfg, generator), tok, cfg, generator, env_factory, context=context)


# 12_multi_turn/12_4_context_management, cell 25
def tokens_read(traj):
    """(all, new): tokens of all views of an episode; those of them behind the prefix that was just read."""
    total, new, before = 0, 0, []
    for sample in traj.samples:
        view = sample.ids[:len(sample.ids) - int(sample.action_mask.sum())].tolist()
        total, new = total + len(view), new + len(view) - len(commonprefix([view, before]))
        before = sample.ids.tolist()
    return total, new


# 12_multi_turn/12_4_context_management, cell 25
def evaluate_context(policy, tasks, tok, n_samples, generator, cfg, context, env_factory=make_env):
    """`evaluate` under a context policy, with the tokens that an episode reads: all, and new ones."""
    trajs = context_groups(policy, tasks, tok, cfg, generator, env_factory, n_samples, context)
    total, new = zip(*map(tokens_read, trajs), strict=True)
    n = len(trajs)
    return heldout_stats(tasks, trajs) | {'tokens_read': sum(total) / n, 'tokens_new': sum(new) / n}


# 12_multi_turn/12_4_context_management, cell 26
COMPACTION_CASES = (  # calls so far, the note to be seen
    ((), None), (('read',), None), (('test', 'test'), None), (('read', 'test'), 'fix_boundary'),
    (('read', 'test', 'edit fix_boundary'), 'fix_boundary'),
    (('read', 'edit fix_boundary', 'read', 'test'), 'no error'),
    (('read', 'edit fix_boundary', 'read'), 'fix_boundary'),
)


# 12_multi_turn/12_4_context_management, cell 26
def compacted(calls, note, tok):
    """An episode of these calls, and the ids that its next call should see, with the given note."""
    episode, k = Episode(make_env(RLConfig()), make_tasks()[1], tok, max_turns=6, max_len=256), len(calls)
    for call in calls:
        episode.act(ids := tok.encode(f'<call> {call} </call>'), [0.0] * len(ids))
    prompt, last = (pick(episode.ids, episode.owner, episode.turn, [
        t for t, when in enumerate(episode.turn) if when == n]).ids for n in (-1, k - 1))
    return episode, prompt + tok.encode(f'{OBS} {note} {OBS_END}' if note else '') + last * (k > 0)


# 12_multi_turn/12_4_context_management, cell 26
@exercise
def check_compaction(view):
    """Try `view(ids, owner, turn, k, tok)` on COMPACTION_CASES; a text that says what is wrong."""
    tok = build_tokenizer(make_tasks('all'))
    for calls, note in COMPACTION_CASES:
        episode, expected = compacted(calls, note, tok)
        found = list(view(episode.ids, episode.owner, episode.turn, len(calls), tok))
        if found != expected:
            return (f'Not yet. After the calls {list(calls)} the next one should see\n'
                    f'  {tok.decode(expected)}\nbut your function shows\n  {tok.decode(found)}')
    return f'Right: all {len(COMPACTION_CASES)} cases are as they should be.'
