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
# # 13.4 A call cut by the token limit is no call
#
# Every request has a limit of tokens. A turn that runs into it ends anywhere: what came back is a prefix of
# the call that the policy was writing, and nobody knows what the rest would have been. The server says so
# with `finish_reason == 'length'`. In the big run (pull request 2587 of radixark/miles) the loop ends such
# an episode. We compare that with making the call as it stands and with answering by an error, on the RL
# base under tight limits, and meet servers that do not say.
#
# **Time** 20 min. **Assumes** [13.0](13_0_a_server_for_the_agent.ipynb). **Afterwards you can** recognise a
# cut answer even where the server's label hides it, and say what executing, ending or reporting it costs.

# %%
#@save cut_calls
from dataclasses import dataclass

import gymnasium as gym

from agentrl.sampling import sample_next
from agentrl.serving import call_to_tool, tool_to_call
from agentrl.tokenizer import CALL_END

# %% [markdown]
# ## Three treatments
#
# A treatment takes the environment and the prefix, and answers what `step` answers. To *execute* is what a
# lenient parser does: it closes what is open. To *end* counts the turn, since it was taken, calls no tool,
# and stops with `length`: truncated from outside, and not `invalid`, for the policy did not write a bad call.
# To *report* hands the prefix on as the malformed text that it is.

# %%
#@save
def execute_prefix(env, text):
    """Close a cut call and make it, as a lenient parser would."""
    return env.step(f'{text} {CALL_END}')


def end_at_cut(env, text):
    """End the episode: the turn counts, no tool is called, stop is `length`."""
    env.unwrapped.info['n_turns'] += 1
    return '', 0.0, False, True, env.get_wrapper_attr('cut')('length')


def report_error(env, text):
    """Answer with the error of a malformed call, and go on."""
    return env.step(text)


TREATMENTS = {'execute the prefix': execute_prefix, 'end the episode': end_at_cut,
              'report': report_error}

# %%
import pandas as pd

from agentrl.environment import EditBudgetEnv
from agentrl.tasks import make_tasks

rows, task = [], make_tasks()[1]
for name, treat in TREATMENTS.items():
    for prefix in ('<call> edit fix_boundary', '<call> edit'):
        env = EditBudgetEnv()
        env.reset(options={'task': task})
        observation, _, terminated, truncated, info = treat(env, prefix)
        rows.append((name, prefix, observation, info['stop'] or 'running',
                     info['n_turns'], info['n_invalid'], info['n_edits']))
pd.DataFrame(rows, columns=['treatment', 'prefix', 'observation', 'stop', 'turns', 'malformed', 'edits'])

# %% [markdown]
# ## Any limit in the sampler
#
# The sampler of section 5.3 cuts calls at six tokens, and the environment answers with an error: the third
# treatment. `run_limited` is that loop with the limit as an argument. `CutEnv` hands on what was cut. In the
# process it need not be told: the ids are at hand, and a call has ended exactly if it ends with `</call>`.

# %%
#@save
class CutEnv(gym.Wrapper):
    """Gives calls without an end, which the token limit has cut, to `on_cut(env, text)`."""

    def __init__(self, env, on_cut):
        super().__init__(env)
        self.on_cut = on_cut

    def step(self, action):
        ended = action.split()[-1:] == [CALL_END]
        return self.env.step(action) if ended else self.on_cut(self.env, action)


def run_limited(reader, episodes, limit, temperature, noise):
    """Run all episodes to their end with calls of at most `limit` tokens; noise [B, N]."""
    running, calls = dict(enumerate(episodes)), [([], []) for _ in episodes]
    n_sampled, new_ids = [0] * len(episodes), {row: episode.ids for row, episode in running.items()}
    while running:
        u = noise[list(running), [n_sampled[row] for row in running]]
        ids, logps = sample_next(reader.next_logits(new_ids), temperature, u)
        for row, token, logp in zip(list(running), ids.tolist(), logps.tolist(), strict=True):
            episode, call, n_sampled[row] = running[row], calls[row], n_sampled[row] + 1
            call[0].append(token), call[1].append(logp)
            new_ids[row] = [token]
            if token == episode.tok.call_end_id or len(call[0]) == limit:
                start = len(episode.ids) + len(call[0]) - 1
                episode.act(*call)
                calls[row], new_ids[row] = ([], []), episode.ids[start:]
            if episode.done:
                del running[row], new_ids[row]


# %%
import torch

from agentrl.base import make_rl_base
from agentrl.episodes import Episode
from agentrl.sampling import CachedReader, run_episodes
from agentrl.tasks import randomize_names
from agentrl.tokenizer import build_tokenizer

tok = build_tokenizer(make_tasks('all'))
policy = make_rl_base(tok)


def episodes_of(seed, make, copies=3):
    """Episodes of all train tasks, `copies` of each with names of its own, and their uniforms."""
    rng = torch.Generator().manual_seed(seed)
    named = [randomize_names(task, rng) for task in make_tasks('train') for _ in range(copies)]
    noise = torch.rand(len(named), 256, generator=rng, dtype=torch.float64)
    return [Episode(make(), task, tok, 6, 256) for task in named], noise


def play(limit, treat):
    """Finished episodes of three seeds under a limit and a treatment; the same luck for all of them."""
    parts = [episodes_of(seed, lambda: CutEnv(EditBudgetEnv(), treat)) for seed in range(3)]
    episodes, noise = [episode for some, _ in parts for episode in some], torch.cat([u for _, u in parts])
    run_limited(CachedReader(policy, len(episodes)), episodes, limit, 1.0, noise)
    return dict(enumerate(some for some, _ in parts))


plain, noise = episodes_of(0, EditBudgetEnv)
run_episodes(CachedReader(policy, len(plain)), plain, 1.0, noise)
whole = play(6, report_error)
print('the tokens of section 5.3:', [some.ids for some in whole[0]] == [some.ids for some in plain])

# %% [markdown]
# ## The base under tight limits
#
# The calls of the gym have three tokens, edits have four. A limit of two cuts everything, three cuts edits,
# from four on only malformed calls are cut. All arms share tasks, names and uniforms, so an episode is the
# same in all of them until its first cut.

# %%
def stats(episodes):
    """Shares of episodes, and means an episode."""
    n, infos = len(episodes), [episode.info for episode in episodes]
    cut = [any(action.split()[-1] != CALL_END for action in episode.actions) for episode in episodes]
    return {'pass': sum(info['hidden_pass'] for info in infos) / n, 'with a cut': sum(cut) / n,
            'stop length': sum(info['stop'] == 'length' for info in infos) / n,
            'turns': sum(info['n_turns'] for info in infos) / n,
            'malformed': sum(info['n_invalid'] for info in infos) / n,
            'tokens written': sum(episode.owner.count(2) for episode in episodes) / n}


played = {(name, limit, seed): episodes for name, treat in TREATMENTS.items() for limit in (2, 3, 4)
          for seed, episodes in play(limit, treat).items()}
runs = pd.DataFrame([{'limit': limit, 'arm': name, 'seed': seed} | stats(episodes)
                     for (name, limit, seed), episodes in played.items()]
                    + [{'limit': 6, 'arm': 'none is cut', 'seed': seed} | stats(episodes)
                       for seed, episodes in whole.items()])
means = runs.groupby(['limit', 'arm']).mean().drop(columns='seed').round(3)
means

# %% [markdown]
# ## Was the prefix the call?
#
# To execute a prefix looks harmless here, and even helpful: it passes where the others fail. Does it make the
# call that the policy was about to write? We can know, because the arm with six tokens had the same luck. For
# the first cut of each episode we compare what closing the prefix makes with what the policy wrote when it
# was allowed to end.

# %%
#@save
def compare_prefix(prefix, whole):
    """What closing a cut call makes, against the whole call: same call, other call, or no call."""
    made, meant = call_to_tool(f'{prefix} {CALL_END}'), call_to_tool(whole)
    return 'no call' if made is None else 'same call' if made == meant else 'other call'


# %%
def first_cut(cut, whole):
    """(prefix, whole call) of an episode's first cut, or None."""
    pairs = zip(cut.actions, whole.actions, strict=False)
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


verdicts = pd.DataFrame([
    (limit, compare_prefix(*pair), ' | '.join(pair)) for limit in (2, 3, 4) for seed in range(3)
    for episodes in zip(played['execute the prefix', limit, seed], whole[seed], strict=True)
    if (pair := first_cut(*episodes))], columns=['limit', 'closing it makes', 'prefix and whole'])
print(*verdicts.loc[verdicts['closing it makes'] == 'other call', 'prefix and whole'], sep='\n')
pd.crosstab(verdicts['limit'], verdicts['closing it makes'])

# %% [markdown]
# Where closing makes a call, it is nearly always the policy's. That is our gym's doing, not the treatment's
# merit: a call is one word and at most one more, and no edit's name is the beginning of another's. Real
# agents write commands and code. So we take the repaired functions of all tasks as the text that an agent
# writes, cut each at every character, and ask Python what the prefix is.

# %%
import ast

from agentrl.tasks import apply_op


def prefix_kind(source, n):
    """What the first n characters of a program are: no program, the same one, or another one."""
    try:
        tree = ast.parse(source[:n])
    except SyntaxError:
        return 'no program'
    return 'the same' if ast.dump(tree) == ast.dump(ast.parse(source)) else 'another program'


kinds = pd.Series([prefix_kind(source, n) for task in make_tasks('all')
                   for source in [apply_op(task.source, task.edit)] for n in range(1, len(source))])
print(kinds.value_counts(), '\nshare of other programs:', round((kinds == 'another program').mean(), 3))
source = apply_op(task.source, task.edit)
n = max(n for n in range(len(source)) if prefix_kind(source, n) == 'another program')
print('for example:', repr(source[:n][-30:]), 'of', repr(source[-34:]))

# %% [markdown]
# With actions like these, to execute the prefix means to let the token limit choose the program.
#
# ## What the server says, and what it does not
#
# A loop behind an API has no ids. It has `finish_reason` and `usage`, and needs both: a server that parses
# calls leniently may label a cut one `tool_calls`. Production code does not guess: an answer without
# `finish_reason`, without `usage` or without choices is an error, not a `stop`.

# %%
#@save
@dataclass(frozen=True)
class Turn:
    """What the loop needs of an answer: tool calls as (id, name, arguments), text, why it ended, tokens."""
    calls: tuple
    text: str
    finish_reason: str
    written: int
    total: int

    def message(self):
        """The turn as a message of the chat."""
        calls = [{'id': number, 'type': 'function', 'function': {'name': name, 'arguments': arguments}}
                 for number, name, arguments in self.calls]
        return {'role': 'assistant', 'content': self.text or None if calls else self.text} | (
            {'tool_calls': calls} if calls else {})


def read_turn(completion):
    """The Turn of a chat completion; ValueError if the server sent something else, or left something out."""
    try:
        choice, usage = completion.choices[0], completion.usage
        calls = tuple((call.id, call.function.name, call.function.arguments)
                      for call in choice.message.tool_calls or [])
        turn = Turn(calls, choice.message.content or '', choice.finish_reason,
                    usage.completion_tokens, usage.total_tokens)
    except (AttributeError, TypeError, IndexError):
        raise ValueError(f'the server sent no whole chat completion: {str(completion)[:50]!r}') from None
    if None in (turn.finish_reason, turn.written, turn.total):
        raise ValueError(f'finish_reason={turn.finish_reason!r}, tokens {turn.written} of {turn.total}: '
                         'the server must send all three')
    named = all(isinstance(name, str) and name for _, name, _ in turn.calls)
    counted = all(isinstance(n, int) and n >= 0 for n in (turn.written, turn.total))
    if not (named and counted and isinstance(turn.text, str)):
        raise ValueError(f'calls, text or token counts are of the wrong type: {str(turn)[:80]}')
    return turn


# %%
#@save
def lenient_finish(text, ended):
    """The label of a server that closes cut calls and says `tool_calls`."""
    tool = call_to_tool(text if ended else f'{text} {CALL_END}')
    return tool, 'tool_calls' if tool else 'stop' if ended else 'length'


# %% [markdown]
# Comparing `written` with the limit has a catch. A call that just fits has as many tokens as one that was
# cut. There is a way out that costs one token: ask for one more than is allowed, and take what needs it as
# cut. Here are 24 first turns, with edits (four tokens) and others (three) among them, under a limit of
# three, on an honest and on a lenient server. What is true we read from the engine.

# %%
#@save
def is_cut(turn, limit=None):
    """Was the turn cut? By the server's word, or because it needed more than `limit` tokens.

    Ask the server for `limit + 1` tokens: a call that just fits is then told from one that was cut.
    """
    return turn.finish_reason == 'length' or (limit is not None and turn.written > limit)


# %%
from openai import OpenAI

from agentrl.serving import TOOL_SCHEMAS, finish_of, serve_agent


def count_labels(finish, max_tokens):
    """Cut calls among 24 first turns under a limit of three tokens: flagged and missed by three rules."""
    with (serve_agent(policy, tok, finish=finish) as server,
          OpenAI(base_url=server.url, api_key='none', max_retries=0, timeout=30) as client):
        turns = [read_turn(client.chat.completions.create(
            model='tiny-agent', messages=[{'role': 'user', 'content': task.issue}], tools=TOOL_SCHEMAS,
            max_tokens=max_tokens, seed=seed)) for seed in range(24)]
        outs = server.call(lambda: [generation.out for generation in server.engine.all])
    cut = [len(out) > 3 or out[-1] != tok.call_end_id for out in outs]
    rules = {'finish_reason': [turn.finish_reason == 'length' for turn in turns],
             'or written >= limit': [turn.finish_reason == 'length' or turn.written >= 3 for turn in turns],
             'or written > limit': [is_cut(turn, 3) for turn in turns]}
    return [{'max_tokens': max_tokens, 'rule': rule, 'cut': sum(cut),
             'missed': sum(c and not f for c, f in zip(cut, flags, strict=True)),
             'false alarms': sum(f and not c for c, f in zip(cut, flags, strict=True))}
            for rule, flags in rules.items()]


servers = {'honest': finish_of, 'lenient': lenient_finish}
labels = pd.DataFrame([{'server': name} | row for name, finish in servers.items()
                       for max_tokens in (3, 4) for row in count_labels(finish, max_tokens)])
labels

# %% [markdown]
# ## A loop that does not guess
#
# `play_chat` plays an episode by chat. It knows the model only as a function `ask(messages)`, so any client
# fits, and a test can put anything in its place. A tool call that the gym does not know is a malformed call,
# never an exception: the model wrote it. Several calls in one message are made in their order.

# %%
#@save
def act_on(turn, env):
    """Make a turn's calls until one ends the episode: (the messages that answer them, info)."""
    answers = []
    for number, name, arguments in turn.calls or [(None, None, None)]:
        try:
            text = tool_to_call(name, arguments) if name else turn.text
        except ValueError:
            text = ''                                           # no call of the gym: malformed
        observation, *_, info = env.step(text)
        answer = {'role': 'tool', 'tool_call_id': number} if name else {'role': 'user'}
        answers.append(answer | {'content': observation})
        if info['stop']:
            break
    return answers, info


async def play_chat(ask, env, task, limit=None, on_cut=end_at_cut, system=(), enough=lambda turn: False):
    """Play an episode with `await ask(messages)`: the final info and the turns.

    A turn for which `is_cut` holds goes to `on_cut`; if `enough(turn)`, the episode ends with stop `context`.
    """
    issue, info = env.reset(options={'task': task})
    messages, turns = [*system, {'role': 'user', 'content': issue}], []
    while not info['stop']:
        turn = read_turn(await ask(messages))
        turns.append(turn)
        if is_cut(turn, limit):
            observation, *_, info = on_cut(env, turn.text)
            answers = [{'role': 'tool', 'tool_call_id': number, 'content': observation}
                       for number, *_ in turn.calls] or [{'role': 'user', 'content': observation}]
        else:
            answers, info = act_on(turn, env)
        messages += [turn.message(), *answers]
        if not info['stop'] and enough(turn):
            info = env.get_wrapper_attr('cut')('context')
    return info, turns


# %% [markdown]
# Twenty episodes against the lenient server, with a limit of three. A loop that trusts the label makes edits
# that were cut; one that counts ends those episodes.

# %%
import asyncio
from collections import Counter

from openai import AsyncOpenAI

from agentrl.serving import run_async


async def play_many(url, limit, max_tokens):
    """How twenty episodes end; the loop takes what is longer than `limit` as cut."""
    async with AsyncOpenAI(base_url=url, api_key='none', max_retries=0, timeout=30) as client:
        def asking(episode):
            return lambda messages: client.chat.completions.create(
                model='tiny-agent', messages=messages, tools=TOOL_SCHEMAS, max_tokens=max_tokens,
                seed=100 * episode + len(messages))

        return await asyncio.gather(*(play_chat(asking(n), EditBudgetEnv(), task, limit)
                                      for n, task in enumerate(make_tasks('train'))))


rows = []
for loop, limit, max_tokens in (('trusts the label', None, 3), ('counts tokens', 3, 4)):
    with serve_agent(policy, tok, finish=lenient_finish) as server:
        ends = run_async(play_many(server.url, limit, max_tokens))
    rows.append({'loop': loop} | Counter(info['stop'] for info, _ in ends)
                | {'edits made': sum(info['n_edits'] for info, _ in ends)})
pd.DataFrame(rows).fillna(0)

# %%
import matplotlib.pyplot as plt

from agentrl.plotting import plot_bands, save_figure, save_table, spread_labels, use_style

use_style(dashes=True)
fig, axes = plt.subplots(1, 2, figsize=(10, 3.4))
labelled = {'pass': 'share of episodes that pass', 'tokens written': 'tokens written an episode'}
for ax, (column, label) in zip(axes, labelled.items(), strict=True):
    for name in TREATMENTS:
        plot_bands(ax, runs, 'limit', column, name)
    full = runs.loc[runs['arm'] == 'none is cut', column].mean()
    ax.axhline(full, color='#888888', linestyle=':', linewidth=1)
    ax.annotate('nothing cut', (2, full), xytext=(6, 3), textcoords='offset points', fontsize='small')
    ax.set(xlabel='limit of tokens a call', ylabel=label, xticks=(2, 3, 4), xlim=(2, 4), ylim=(0, None))
    spread_labels(ax)
fig.suptitle('Figure 13.4  Three treatments of a cut call, three streams of random numbers')
save_table(labels, '13_4_labels')
save_figure(fig, '13_4_cut_calls', runs)

# %% [markdown]
# ## What was seen
#
# On the RL base, to execute the prefix is the best treatment: under a limit of three tokens a share of 0.222
# passes, close to 0.239 where nothing is cut, and with the other two nothing passes, since no edit can be
# made. That executing does harm, the reason for the big run's repair, is *not* reproduced here, and we see
# why: the prefix of a call of one or two words is nearly always the call. Where the text is code, a share of
# 0.276 of all prefixes are programs, and each of them is another program than the one that was meant.
#
# Between the two honest treatments the difference is cost. Ending takes 5.450 tokens an episode under a limit
# of three, reporting 13.644, because the policy makes the same call again and is cut again. And the label
# alone cannot be trusted: on the lenient server it misses every cut call. Comparing with the limit itself
# raises an alarm for every call that just fits; asking for one token more than is allowed does neither.
#
# Advice: end the episode at a cut, with the turn counted, nothing executed and a stop of its own; ask for one
# token more than the limit, and take a turn that needs it as cut; treat an answer without `finish_reason` as
# an error.
#
# **Try it.** Add a treatment that takes the turn back: it returns the last observation once more and counts
# nothing. How many tokens does an episode cost under a limit of three?
