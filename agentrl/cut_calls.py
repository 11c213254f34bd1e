# Made by tools/export.py from notebooks/13_staying_alive/13_4_a_call_cut_by_the_limit.py. Do not edit: change it there, then `make export`.
# Body: 958235acc9eba62b
"""13.4 A call cut by the token limit is no call."""

from dataclasses import dataclass

import gymnasium as gym

from agentrl.sampling import sample_next
from agentrl.serving import call_to_tool, tool_to_call
from agentrl.tokenizer import CALL_END


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 2
def execute_prefix(env, text):
    """Close a cut call and make it, as a lenient parser would."""
    return env.step(f'{text} {CALL_END}')


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 2
def end_at_cut(env, text):
    """End the episode: the turn counts, no tool is called, stop is `length`."""
    env.unwrapped.info['n_turns'] += 1
    return '', 0.0, False, True, env.get_wrapper_attr('cut')('length')


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 2
def report_error(env, text):
    """Answer with the error of a malformed call, and go on."""
    return env.step(text)


TREATMENTS = {'execute the prefix': execute_prefix, 'end the episode': end_at_cut,
              'report': report_error}


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 4
class CutEnv(gym.Wrapper):
    """Gives calls without an end, which the token limit has cut, to `on_cut(env, text)`."""

    def __init__(self, env, on_cut):
        super().__init__(env)
        self.on_cut = on_cut

    def step(self, action):
        ended = action.split()[-1:] == [CALL_END]
        return self.env.step(action) if ended else self.on_cut(self.env, action)


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 4
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


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 7
def compare_prefix(prefix, whole):
    """What closing a cut call makes, against the whole call: same call, other call, or no call."""
    made, meant = call_to_tool(f'{prefix} {CALL_END}'), call_to_tool(whole)
    return 'no call' if made is None else 'same call' if made == meant else 'other call'


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 10
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


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 10
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


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 11
def lenient_finish(text, ended):
    """The label of a server that closes cut calls and says `tool_calls`."""
    tool = call_to_tool(text if ended else f'{text} {CALL_END}')
    return tool, 'tool_calls' if tool else 'stop' if ended else 'length'


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 12
def is_cut(turn, limit=None):
    """Was the turn cut? By the server's word, or because it needed more than `limit` tokens.

    Ask the server for `limit + 1` tokens: a call that just fits is then told from one that was cut.
    """
    return turn.finish_reason == 'length' or (limit is not None and turn.written > limit)


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 14
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


# 13_staying_alive/13_4_a_call_cut_by_the_limit, cell 14
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
