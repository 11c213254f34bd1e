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
# # 13.0 Put a server between the agent and its loop
#
# In a big run the agent does not live in the process that plays its episodes. It sits behind an HTTP server,
# and a client library asks it for one turn at a time. Most of what kills such runs happens on that line: time
# limits, retries, answers cut short, connections lost. To study it with real parts we build the line in
# small: TinyAgent behind a server that speaks OpenAI's protocol, asked by the `openai` library as it comes
# from the registry. We will see that an episode played over HTTP is, token for token, the one played in the
# process.
#
# **Time** 40 min. **Assumes** [4.3](../04_environment/04_3_bugfix_env.ipynb),
# [5.5](../05_trajectories/05_5_rl_base.ipynb). **Afterwards you can** serve a policy over OpenAI's
# protocol, and check token for token that an episode over HTTP is the local one.

# %%
#@save serving
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from agentrl.environment import check_count, parse_call
from agentrl.episodes import MAX_CALL_TOKENS
from agentrl.sampling import sample_next
from agentrl.tasks import EDIT_OPS
from agentrl.tokenizer import BOS, CALL, CALL_END, MARKERS, OBS, OBS_END

# %% [markdown]
# ## Calls as tools
#
# OpenAI's protocol has tools with JSON arguments; our gym has calls of three or four words. Each tool gets a
# JSON schema, which any model behind such a protocol can be shown. TinyAgent does not read them: the tools
# are in its weights.

# %%
#@save
def tool_schema(name, description, **properties):
    """A tool as OpenAI's protocol describes it; all properties are required."""
    parameters = {'type': 'object', 'properties': properties, 'required': list(properties),
                  'additionalProperties': False}
    return {'type': 'function',
            'function': {'name': name, 'description': description, 'parameters': parameters}}


TOOL_SCHEMAS = [
    tool_schema('read', 'Show the present source of the function, in one line.'),
    tool_schema('test', 'Run the visible tests; says whether they pass.'),
    tool_schema('edit', 'Apply a named edit to the source. The number of edits is limited.',
                op={'type': 'string', 'enum': list(EDIT_OPS)}),
    tool_schema('submit', 'Hand in the source as it is. Hidden tests judge it and the episode ends.'),
]

# %% [markdown]
# The way there and the way back must be exact, or the policy would be trained on other words than it wrote. A
# well-formed call becomes a tool call. Anything else stays text, word for word: it is an answer without a
# tool call, and what to make of it is for the agent loop to say.

# %%
#@save
def call_to_tool(text):
    """Name and JSON arguments of a well-formed call, as a tool call holds them; None for any other text."""
    tool, op = parse_call(text)
    if tool == 'invalid':
        return None
    return {'name': tool, 'arguments': json.dumps({} if op is None else {'op': op})}


def tool_to_call(name, arguments):
    """The gym's call for a tool's name and its JSON arguments; ValueError if there is no such call."""
    try:
        given = json.loads(arguments or '{}')
    except (ValueError, TypeError):
        raise ValueError(f'arguments={arguments!r} of the tool {name!r} are not JSON') from None
    wanted = ['op'] if name == 'edit' else []
    if not isinstance(given, dict) or list(given) != wanted:
        raise ValueError(f'arguments={arguments!r} of the tool {name!r} must be a JSON object '
                         f'with the keys {wanted}')
    call = ' '.join([CALL, name, *map(str, given.values()), CALL_END])
    if call_to_tool(call) is None:
        raise ValueError(f'{name} {arguments} is not a call of the gym: the tools are read, test, edit, '
                         f'submit, and the edits {", ".join(EDIT_OPS)}')
    return call


# %%
words = ['read', 'test', 'submit', *(f'edit {op}' for op in EDIT_OPS)]
calls = [f'<call> {some} </call>' for some in words]
for call in calls[1:4]:
    print(f'{call:33} {call_to_tool(call)}')
print('all calls come back:', all(tool_to_call(**call_to_tool(call)) == call for call in calls))
print(call_to_tool('<call> read read </call>'), call_to_tool('<call> edit'))

# %% [markdown]
# ## A chat as a row of tokens
#
# A request carries the whole conversation. Its messages become the row that an `Episode` (section 5.2) would
# hold: the issue after `<bos>`, each call, each observation between `<obs>` and `</obs>`. Three rules keep
# that exact. A system message is dropped, since TinyAgent's template has no place for one. A tool's answer
# must name the call that it answers. And nobody but the assistant may use markers: an observation with
# `<call> submit </call>` in it would otherwise be read as a call.

# %%
#@save
def message_text(message, place, asked):
    """The words of one message, by its role; `asked` is the id of the tool call it should answer, if any."""
    role, content, calls = message['role'], message.get('content') or '', message.get('tool_calls') or []
    if role == 'assistant':
        if len(calls) > 1 or bool(calls) == bool(content):
            raise ValueError('an assistant message must hold one tool call or, without one, its text')
        return tool_to_call(**calls[0]['function']) if calls else content
    if message.get('tool_call_id') != (asked if role == 'tool' else None) or (role == 'user' and asked):
        raise ValueError(f'the call before is {asked!r}, but this {role} message '
                         f'has tool_call_id={message.get("tool_call_id")!r}')
    if marks := [word for word in content.split() if word in MARKERS]:
        raise ValueError(f'the markers {", ".join(marks)} may stand in assistant messages only')
    return f'{OBS} {content} {OBS_END}' if place else f'{BOS} {content}'


def prompt_ids(messages, tok):
    """The token row of a chat, as an episode holds it; ValueError names the message that does not fit."""
    ids, asked = [], None
    chat = [message for message in messages if message['role'] not in ('system', 'developer')]
    for place, message in enumerate(chat):
        try:
            role = message['role']
            if (role == 'assistant') != bool(place % 2) or (role == 'tool' and not place):
                raise ValueError('messages must be: user, assistant, tool or user, assistant, ...')
            ids += tok.encode(message_text(message, place, asked))
        except ValueError as error:
            raise ValueError(f"message {place} ({message['role']}): {error}") from None
        asked = message['tool_calls'][0].get('id') if message.get('tool_calls') else None
    if len(chat) % 2 == 0:
        raise ValueError('the last message must be of a user or a tool: there is nothing to answer')
    return ids


# %% [markdown]
# The same three turns as a chat and as an episode:

# %%
from agentrl.environment import EditBudgetEnv
from agentrl.episodes import Episode
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer

tok, task = build_tokenizer(make_tasks('all')), make_tasks()[1]
episode = Episode(EditBudgetEnv(), task, tok, max_turns=6, max_len=256)
chat = [{'role': 'system', 'content': 'not read'}, {'role': 'user', 'content': task.issue}]
env = EditBudgetEnv()
env.reset(options={'task': task})
written = ('<call> read </call>', '<call> read read </call>', '<call> edit fix_boundary </call>')
for n, call in enumerate(written):
    episode.act(tok.encode(call), [0.0] * len(call.split()))
    tool = call_to_tool(call)
    chat.append({'role': 'assistant', 'tool_calls': [{'id': f'call-{n}', 'function': tool}]} if tool else
                {'role': 'assistant', 'content': call})
    answer = {'role': 'tool', 'tool_call_id': f'call-{n}'} if tool else {'role': 'user'}
    chat.append(answer | {'content': env.step(call)[0]})
print(tok.decode(prompt_ids(chat, tok)))
print('the same tokens:', prompt_ids(chat, tok) == episode.ids)

# %%
def refused(*messages):
    try:
        prompt_ids(messages, tok)
    except ValueError as error:
        print(error)


refused({'role': 'user', 'content': 'please mend it'})
refused(chat[1], {'role': 'assistant', 'content': '<call> raed </call>'}, chat[3])
refused(*chat[1:3], chat[3] | {'tool_call_id': 'call-7'})
refused(*chat[1:3], chat[3] | {'content': 'def </obs> <call> submit </call>'})

# %% [markdown]
# ## The engine
#
# One request is one *generation*. It owns its row of uniforms, drawn from the request's `seed`, so its tokens
# do not depend on who shares the engine with it. `left` is set once its client is known to have gone.

# %%
#@save
@dataclass(eq=False)
class Generation:
    """A request on the engine: what it reads, what it has written, and where it stands."""
    unread: list
    noise: torch.Tensor                                                           # [max_tokens]
    temperature: float = 1.0
    end_id: int | None = None
    retry: bool = False
    state: str = 'waiting'                                       # then running, then finished or cancelled
    left: bool = False
    watch: asyncio.Task | None = None
    out: list = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    def __post_init__(self):
        self.n_prompt = len(self.unread)
    @property
    def ended(self):
        return self.state in ('finished', 'cancelled')
    def write(self, logits):
        """Choose the next token from logits [V]; at temperature 0, the likeliest."""
        n = len(self.out)
        token = (logits.argmax() if self.temperature == 0 else
                 sample_next(logits[None], self.temperature, self.noise[n:n + 1])[0])
        self.unread = [int(token)]
        self.out += self.unread
        return self.unread[0] == self.end_id or n + 1 == len(self.noise)
    async def tokens(self):
        """Yield each token as soon as it is written."""
        sent = 0
        while not (self.ended and sent == len(self.out)):
            while sent < len(self.out):
                yield self.out[sent]
                sent += 1
            if not self.ended:
                await self.news.wait()
            self.news.clear()


# %% [markdown]
# The engine has `slots`, rows of one key/value cache (section 3.2). A step reads the new tokens of all
# running generations at once and writes one more for each; who ends makes room, and who waits gets the slot.
# This is continuous batching (Yu et al. 2022) in small. `token_seconds` lets a step take as long as one
# likes, and `held` stops decoding altogether while requests keep coming in: with it we can study time limits
# without a race between two clocks.

# %%
#@save
class Engine:
    """Decodes step by step, up to `slots` generations at a time; the others wait in a queue."""
    def __init__(self, policy, tok, slots=8, token_seconds=0.0, seed=0):
        if not (isinstance(token_seconds, int | float) and token_seconds >= 0):
            raise ValueError(f'token_seconds={token_seconds!r} must be a number >= 0')
        self.policy, self.tok, self.token_seconds = policy, tok, token_seconds
        self.rows, self.cache = [None] * check_count('slots', slots), policy.empty_cache(slots)
        self.queue, self.all, self.rng = deque(), [], torch.Generator().manual_seed(seed)
        self.awake, self.held, self.stopped = asyncio.Event(), False, False
        self.tokens_for_nobody, self.peak = 0, 0
    def hold(self, held=True):
        """Stop decoding, or (False) go on."""
        self.held = held
        self.awake.set()
    def submit(self, generation):
        """Put a generation into the queue; an engine that has stopped sends it back."""
        self.all.append(generation)
        if self.stopped:
            generation.state = 'cancelled'
            return
        self.queue.append(generation)
        self.peak = max(self.peak, len(self.queue) + sum(map(bool, self.rows)))
        self.awake.set()
    def end(self, generation, state):
        """Take a generation, which has ended, out of its slot or out of the queue."""
        if generation.ended:
            return
        if generation.state == 'running':
            self.rows[self.rows.index(generation)] = None
        else:
            self.queue.remove(generation)
        generation.state = state
        generation.news.set()
        self.awake.set()


# %% [markdown]
# Around it goes the loop that runs as long as the server. Its counters are what section 13.3 lives on, so
# each is defined: `peak` is the largest number of generations that ran or waited at a time; `left` counts
# those whose client went before the answer came, `unused` those of them that have ended; and
# `tokens_for_nobody` are tokens written after the client had left.

# %%
#@save
def admit(engine):
    """Give free slots to those who wait, first come, first served."""
    for slot, occupant in enumerate(engine.rows):
        if occupant is None and engine.queue:
            engine.rows[slot] = engine.queue.popleft()
            engine.rows[slot].state = 'running'
            engine.cache.lengths[slot] = 0                      # the row's old keys are never looked at again


def decode_step(engine):
    """Decode one token for each running generation."""
    running = [generation for generation in engine.rows if generation]
    unread = [generation.unread if generation else [] for generation in engine.rows]
    logits, engine.cache = engine.policy.extend(unread, engine.cache)
    for generation, row in zip(running, logits, strict=True):
        engine.tokens_for_nobody += generation.left
        if generation.write(row):
            engine.end(generation, 'finished')
        generation.news.set()


async def run_engine(engine):
    """Decode until cancelled; then end what is left, so that nobody waits for an engine that is no more."""
    try:
        while True:
            admit(engine)
            if engine.held or not any(engine.rows):
                engine.awake.clear()
                await engine.awake.wait()
                continue
            decode_step(engine)
            await asyncio.sleep(engine.token_seconds)
    finally:
        engine.stopped = True
        for generation in engine.all:
            engine.end(generation, 'cancelled')


# %%
#@save
def engine_metrics(engine):
    """What the engine has seen: generations by state, retries among them, tokens, and those for nobody."""
    states = Counter(generation.state for generation in engine.all)
    return {'started': len(engine.all), 'retries': sum(generation.retry for generation in engine.all),
            **{state: states[state] for state in ('waiting', 'running', 'finished', 'cancelled')},
            'peak': engine.peak, 'left': sum(generation.left for generation in engine.all),
            'unused': sum(generation.ended and generation.left for generation in engine.all),
            'tokens': sum(len(generation.out) for generation in engine.all),
            'tokens_for_nobody': engine.tokens_for_nobody}


# %% [markdown]
# ## The protocol
#
# Of the protocol's many fields we take those that we obey. Any other is refused by name; a server that
# accepts `logprobs` or `n` and ignores them is a trap. `ignore_eos` is an extension that vLLM and SGLang
# have: go on after the end of a call, up to the limit.

# %%
#@save
class Message(BaseModel):
    """A message of a chat; a tool call is checked when it is read."""
    model_config = ConfigDict(extra='forbid')
    role: Literal['system', 'developer', 'user', 'assistant', 'tool']
    content: str | None = None
    tool_calls: list[dict] | None = None
    tool_call_id: str | None = None


class ChatRequest(BaseModel):
    """The part of OpenAI's chat completion request that this server obeys."""
    model_config = ConfigDict(extra='forbid')
    model: str
    messages: list[Message] = Field(min_length=1)
    tools: list[dict] | None = None
    max_tokens: int = Field(MAX_CALL_TOKENS, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stream: bool = False
    stream_options: dict[Literal['include_usage'], bool] | None = None
    ignore_eos: bool = False


# %% [markdown]
# Why did it stop? `length`, if the limit came before the end of the call; else `tool_calls` or `stop`. The
# function is a parameter of the server below, because not all servers are so honest (section 13.4).

# %%
#@save
def finish_of(text, ended):
    """(tool call or None, finish_reason) of a text that has come to its end, or was cut."""
    if not ended:
        return None, 'length'
    tool = call_to_tool(text)
    return tool, 'tool_calls' if tool else 'stop'


def usage_of(generation):
    """Tokens read, written and both."""
    prompt, written = generation.n_prompt, len(generation.out)
    return {'prompt_tokens': prompt, 'completion_tokens': written, 'total_tokens': prompt + written}


def answer_of(generation, request, tok, finish):
    """(message, finish_reason) of a finished generation; tool calls only where the request has tools."""
    text = tok.decode(generation.out)
    tool, reason = finish(text, generation.out[-1] == generation.end_id)
    if tool is None or not request.tools:
        return {'role': 'assistant', 'content': text}, 'stop' if reason == 'tool_calls' else reason
    call = {'id': f'call-{len(request.messages)}', 'type': 'function', 'function': tool}
    return {'role': 'assistant', 'content': None, 'tool_calls': [call]}, reason


# %% [markdown]
# Streaming sends the same answer in pieces, one line of JSON each. Text goes out word by word. A tool call is
# known only when it is complete, so with tools everything comes in the last piece but one.

# %%
#@save
def piece(number, kind, **fields):
    """What all answers of the server carry, whole ('completion') or in pieces ('completion.chunk')."""
    return {'id': f'chatcmpl-{number}', 'object': f'chat.{kind}', 'created': int(time.time()),
            'model': 'tiny-agent', **fields}


async def stream_pieces(generation, number, request, tok, finish):
    """The lines of a streamed answer, as server-sent events."""
    def event(delta, reason=None):
        choice = {'index': 0, 'delta': delta, 'finish_reason': reason}
        return f"data: {json.dumps(piece(number, 'completion.chunk', choices=[choice]))}\n\n"

    yield event({'role': 'assistant'})
    sent = 0
    async for token in generation.tokens():
        if not request.tools:
            yield event({'content': ' ' * bool(sent) + tok.itos[token]})
            sent += 1
    generation.watch.cancel()
    if generation.state == 'cancelled':
        return                                                  # without [DONE]: the answer is not complete
    message, reason = answer_of(generation, request, tok, finish)
    if calls := message.get('tool_calls'):
        yield event({'tool_calls': [{'index': 0, **calls[0]}]})
    elif not sent:
        yield event({'content': message['content']})
    yield event({}, reason)
    if (request.stream_options or {}).get('include_usage'):
        usage = piece(number, 'completion.chunk', choices=[], usage=usage_of(generation))
        yield f'data: {json.dumps(usage)}\n\n'
    yield 'data: [DONE]\n\n'


# %% [markdown]
# ## The server
#
# A request is turned into a generation, or refused with status 400 or 404. Then two things can happen
# first: the answer is complete, or the client goes. A server learns of the latter only if it looks, and
# what it does then is `notices_disconnect`: cancel the generation, or decode on for nobody. The default
# of most web frameworks is the second.

# %%
#@save
def error_answer(status, message, code):
    """An error in the form that the `openai` library reads."""
    error = {'message': message, 'type': 'invalid_request_error', 'param': None, 'code': code}
    return JSONResponse({'error': error}, status_code=status)


class Refusal(ValueError):
    """A request that cannot be served, with the HTTP status and the code that say why."""
    def __init__(self, message, status=400, code='invalid_request'):
        super().__init__(message)
        self.status, self.code = status, code


def make_generation(body, engine, retry):
    """The generation of a request; ValueError if its messages, its model or its length do not fit."""
    if body.model != 'tiny-agent':
        raise Refusal(f'model={body.model!r} is not here; there is tiny-agent', 404, 'model_not_found')
    ids = prompt_ids([message.model_dump() for message in body.messages], engine.tok)
    if len(ids) + body.max_tokens > (size := engine.policy.max_len):
        raise Refusal(f'{len(ids)} tokens and max_tokens={body.max_tokens} exceed the context of {size}',
                      code='context_length_exceeded')
    rng = engine.rng if body.seed is None else torch.Generator().manual_seed(body.seed)
    noise = torch.rand(body.max_tokens, generator=rng, dtype=torch.float64)
    end_id = None if body.ignore_eos else engine.tok.call_end_id
    return Generation(ids, noise, body.temperature, end_id, retry)


# %%
#@save
async def watch_client(http, generation, engine, notices_disconnect):
    """Wait until the client goes; note it, and cancel its generation if the server notices such things."""
    while (await http.receive())['type'] != 'http.disconnect':
        pass
    generation.left = True
    if notices_disconnect:
        engine.end(generation, 'cancelled')


async def respond(generation, body, engine, finish):
    """The answer to a request, whole or in pieces; from its end on, a client that goes has its answer."""
    number = len(engine.all)
    if body.stream:
        pieces = stream_pieces(generation, number, body, engine.tok, finish)
        return StreamingResponse(pieces, media_type='text/event-stream')
    async for _ in generation.tokens():
        pass
    generation.watch.cancel()
    if generation.state == 'cancelled':
        return error_answer(503, 'the engine has stopped', 'engine_stopped')
    message, reason = answer_of(generation, body, engine.tok, finish)
    choice = {'index': 0, 'message': message, 'logprobs': None, 'finish_reason': reason}
    return piece(number, 'completion', choices=[choice], usage=usage_of(generation))


# %%
#@save
def create_app(engine, notices_disconnect=True, finish=finish_of):
    """The web application in front of an engine: chat completions, the list of models, metrics."""
    @contextlib.asynccontextmanager
    async def lifespan(app):
        worker = asyncio.create_task(run_engine(engine))
        app.state.stop = worker.cancel
        yield
        worker.cancel()
    app = FastAPI(lifespan=lifespan)
    @app.exception_handler(RequestValidationError)
    async def not_valid(http, error):
        wrong = [f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']} (given: {e['input']!r:.80})"
                 for e in error.errors()]
        return error_answer(400, '; '.join(wrong), 'invalid_request')
    @app.get('/v1/models')
    async def models():
        model = {'id': 'tiny-agent', 'object': 'model', 'created': 0, 'owned_by': 'agentrl'}
        return {'object': 'list', 'data': [model]}
    @app.get('/metrics')
    async def metrics():
        return engine_metrics(engine)
    @app.post('/v1/chat/completions')
    async def chat(body: ChatRequest, http: Request):
        try:
            retry = http.headers.get('x-stainless-retry-count', '0') != '0'
            generation = make_generation(body, engine, retry)
        except Refusal as error:
            return error_answer(error.status, str(error), error.code)
        except ValueError as error:
            return error_answer(400, str(error), 'invalid_request')
        engine.submit(generation)
        generation.watch = asyncio.create_task(watch_client(http, generation, engine, notices_disconnect))
        return await respond(generation, body, engine, finish)
    return app


# %% [markdown]
# The server runs in a thread of this process, on the loopback address and a port that is free. It stops at
# the end of the `with` block, and after `lifetime` seconds in any case. `call` runs a function inside the
# server's loop, where alone the engine may be touched, and waits for the result no longer than ten seconds.

# %%
#@save
class LocalServer:
    """A web application on 127.0.0.1 and a free port, in a thread; use it as a context manager."""
    def __init__(self, app, lifetime=120.0):
        if not lifetime > 0:
            raise ValueError(f'lifetime={lifetime!r} must be > 0 seconds')
        self.app, self.lifetime = app, lifetime
        self.socket = socket.create_server(('127.0.0.1', 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait for an ACK, 40 ms
        self.root = f'http://127.0.0.1:{self.socket.getsockname()[1]}'
        self.url = f'{self.root}/v1'
        config = uvicorn.Config(app, log_config=None, log_level='critical', access_log=False, ws='none',
                                timeout_graceful_shutdown=1)
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main()), daemon=True)
    async def main(self):
        self.loop = asyncio.get_running_loop()
        self.loop.call_later(self.lifetime, self.stop)
        await self.uvicorn.serve(sockets=[self.socket])
    def stop(self):
        """End what runs and stop; called inside the loop."""
        getattr(self.app.state, 'stop', bool)()
        self.uvicorn.should_exit = True
    def call(self, function, *args):
        """Run a function in the server's loop; its result, or its error."""
        async def run():
            return function(*args)
        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout=10)
    def __enter__(self):
        self.thread.start()
        wait_until(lambda: self.uvicorn.started or not self.thread.is_alive(), 'the server to start')
        return self
    def __exit__(self, *_):
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stop)
        self.thread.join(timeout=10)
        self.socket.close()


# %%
#@save
def wait_until(condition, what, seconds=20.0):
    """Wait until `condition()` holds; RuntimeError after `seconds`, so that nothing waits for ever."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise RuntimeError(f'waited {seconds} s in vain for {what}')
        time.sleep(0.005)


def run_async(coroutine, seconds=60.0):
    """Run a coroutine in a thread with a loop of its own, since a notebook's is taken; at most `seconds`."""
    async def bounded():
        return await asyncio.wait_for(coroutine, seconds)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, bounded()).result()


@contextlib.contextmanager
def serve_agent(policy, tok, slots=8, token_seconds=0.0, notices_disconnect=True, finish=finish_of,
                lifetime=120.0):
    """TinyAgent behind OpenAI's protocol while the block lasts: yields the server, with its `engine`."""
    engine = Engine(policy, tok, slots, token_seconds)
    with LocalServer(create_app(engine, notices_disconnect, finish), lifetime) as server:
        server.engine = engine
        yield server


# %% [markdown]
# ## The library at work
#
# From here on the `openai` library talks to it. It needs a base URL and a key, which our server does not look
# at. The first answer is a tool call; without `tools` the same call comes as text; with a limit of two tokens
# it is cut.

# %%
from openai import APIStatusError, OpenAI

from agentrl.base import make_rl_base

policy = make_rl_base(tok)
stack = contextlib.ExitStack()
server = stack.enter_context(serve_agent(policy, tok))
client = stack.enter_context(OpenAI(base_url=server.url, api_key='none', max_retries=0, timeout=30))
print([model.id for model in client.models.list()])
ask = {'model': 'tiny-agent', 'messages': chat[:2], 'seed': 3}
for settings in ({'tools': TOOL_SCHEMAS}, {}, {'tools': TOOL_SCHEMAS, 'max_tokens': 2},
                 {'max_tokens': 8, 'extra_body': {'ignore_eos': True}}):
    completion = client.chat.completions.create(**ask, **settings)
    choice, usage = completion.choices[0], completion.usage
    tools = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    print(f'{choice.finish_reason:10}', choice.message.content, tools,
          usage.prompt_tokens, usage.completion_tokens)

# %%
for settings in ({'tools': TOOL_SCHEMAS}, {}):
    for chunk in client.chat.completions.create(
            **ask, **settings, stream=True, stream_options={'include_usage': True}):
        for choice in chunk.choices:
            calls = [call.function.name for call in choice.delta.tool_calls or []]
            print(repr(choice.delta.content), calls, choice.finish_reason, end=' | ')
    print(chunk.usage.total_tokens, 'tokens')

# %% [markdown]
# ## The same episode, over HTTP and in the process
#
# At temperature 0 there is no luck. We play an episode through the server, with messages and tool calls, and
# again with `PlainReader`, the full forward pass of section 5.3.

# %%
from agentrl.sampling import PlainReader, run_episodes


def play_over_http(task):
    """The messages of an episode played at temperature 0, and its final info."""
    env = EditBudgetEnv()
    issue, info = env.reset(options={'task': task})
    messages = [{'role': 'user', 'content': issue}]
    while not info['stop']:
        choice = client.chat.completions.create(
            model='tiny-agent', messages=messages, tools=TOOL_SCHEMAS, temperature=0).choices[0]
        messages.append(choice.message)
        calls = choice.message.tool_calls or []
        call = tool_to_call(**dict(calls[0].function)) if calls else choice.message.content
        observation, *_, info = env.step(call)
        answer = {'role': 'tool', 'tool_call_id': calls[0].id} if calls else {'role': 'user'}
        messages.append(answer | {'content': observation})
    return messages, info


same = []
for task in make_tasks('heldout')[:4]:
    messages, info = play_over_http(task)
    local = Episode(EditBudgetEnv(), task, tok, max_turns=6, max_len=256)
    run_episodes(PlainReader(policy, 1), [local], 1e-6, torch.full((1, 256), 0.5, dtype=torch.float64))
    chat_so_far = [m if isinstance(m, dict) else m.model_dump() for m in messages[:-2]]
    n = len(prompt_ids(chat_so_far, tok))
    same.append(prompt_ids(chat_so_far, tok) == local.ids[:n] and info == local.info)
print('the same tokens and the same end:', same, info['stop'], info['n_turns'], 'turns')

# %% [markdown]
# ## What is refused
#
# The library raises the server's message as an exception, and does not try again: 400 and 404 say that the
# same request would fail again.

# %%
def try_it(**settings):
    try:
        client.chat.completions.create(**ask | settings)
    except APIStatusError as error:
        print(error.status_code, error.code, '-', error.body['message'])


try_it(messages=[{'role': 'user', 'content': 'please mend the function'}])
try_it(model='gpt-5')
try_it(max_tokens=0, temperature=-1)
try_it(n=2)
try_it(max_tokens=250)

# %% [markdown]
# ## What the engine saw
#
# Finally a client that loses patience while the engine is held. Its default would be to try again; here it
# has no retries. The server notices, so the generation is cancelled and not a token is written for it.

# %%
import httpx
from openai import APITimeoutError

before = httpx.get(f'{server.root}/metrics').json()
server.call(server.engine.hold)
try:
    client.with_options(timeout=0.3).chat.completions.create(**ask)
except APITimeoutError as error:
    print(error)
wait_until(lambda: server.call(engine_metrics, server.engine)['left'] == 1, 'the server to notice')
after = httpx.get(f'{server.root}/metrics').json()
stack.close()
print('before', before)
print('after ', after)

# %% [markdown]
# ## What was seen
#
# The `openai` library, as it comes, asks TinyAgent for turns, with tool calls, streamed or not. Four episodes
# over HTTP are token for token those of the full forward pass up to the last call, and end as they do. The
# three ends of an answer are told apart: `tool_calls`, `stop` and `length`. Four kinds of bad requests get
# status 400, an unknown model 404, each with a message that says what to change. And the engine counts what
# it does, also for clients who have gone.
#
# **Try it.** Start the server with `notices_disconnect=False` and let the last cell's client leave again.
# Before `stack.close()` call `server.call(server.engine.hold, False)`, wait until nothing runs, and look at
# `tokens_for_nobody`.
