# Made by tools/export.py from notebooks/13_staying_alive/13_0_a_server_for_the_agent.py. Do not edit: change it there, then `make export`.
# Body: 8475e815f8824131
"""13.0 Put a server between the agent and its loop."""

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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 2
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 3
def call_to_tool(text):
    """Name and JSON arguments of a well-formed call, as a tool call holds them; None for any other text."""
    tool, op = parse_call(text)
    if tool == 'invalid':
        return None
    return {'name': tool, 'arguments': json.dumps({} if op is None else {'op': op})}


# 13_staying_alive/13_0_a_server_for_the_agent, cell 3
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 5
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 5
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 8
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 9
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 10
def admit(engine):
    """Give free slots to those who wait, first come, first served."""
    for slot, occupant in enumerate(engine.rows):
        if occupant is None and engine.queue:
            engine.rows[slot] = engine.queue.popleft()
            engine.rows[slot].state = 'running'
            engine.cache.lengths[slot] = 0                      # the row's old keys are never looked at again


# 13_staying_alive/13_0_a_server_for_the_agent, cell 10
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 10
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 11
def engine_metrics(engine):
    """What the engine has seen: generations by state, retries among them, tokens, and those for nobody."""
    states = Counter(generation.state for generation in engine.all)
    return {'started': len(engine.all), 'retries': sum(generation.retry for generation in engine.all),
            **{state: states[state] for state in ('waiting', 'running', 'finished', 'cancelled')},
            'peak': engine.peak, 'left': sum(generation.left for generation in engine.all),
            'unused': sum(generation.ended and generation.left for generation in engine.all),
            'tokens': sum(len(generation.out) for generation in engine.all),
            'tokens_for_nobody': engine.tokens_for_nobody}


# 13_staying_alive/13_0_a_server_for_the_agent, cell 12
class Message(BaseModel):
    """A message of a chat; a tool call is checked when it is read."""
    model_config = ConfigDict(extra='forbid')
    role: Literal['system', 'developer', 'user', 'assistant', 'tool']
    content: str | None = None
    tool_calls: list[dict] | None = None
    tool_call_id: str | None = None


# 13_staying_alive/13_0_a_server_for_the_agent, cell 12
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 13
def finish_of(text, ended):
    """(tool call or None, finish_reason) of a text that has come to its end, or was cut."""
    if not ended:
        return None, 'length'
    tool = call_to_tool(text)
    return tool, 'tool_calls' if tool else 'stop'


# 13_staying_alive/13_0_a_server_for_the_agent, cell 13
def usage_of(generation):
    """Tokens read, written and both."""
    prompt, written = generation.n_prompt, len(generation.out)
    return {'prompt_tokens': prompt, 'completion_tokens': written, 'total_tokens': prompt + written}


# 13_staying_alive/13_0_a_server_for_the_agent, cell 13
def answer_of(generation, request, tok, finish):
    """(message, finish_reason) of a finished generation; tool calls only where the request has tools."""
    text = tok.decode(generation.out)
    tool, reason = finish(text, generation.out[-1] == generation.end_id)
    if tool is None or not request.tools:
        return {'role': 'assistant', 'content': text}, 'stop' if reason == 'tool_calls' else reason
    call = {'id': f'call-{len(request.messages)}', 'type': 'function', 'function': tool}
    return {'role': 'assistant', 'content': None, 'tool_calls': [call]}, reason


# 13_staying_alive/13_0_a_server_for_the_agent, cell 14
def piece(number, kind, **fields):
    """What all answers of the server carry, whole ('completion') or in pieces ('completion.chunk')."""
    return {'id': f'chatcmpl-{number}', 'object': f'chat.{kind}', 'created': int(time.time()),
            'model': 'tiny-agent', **fields}


# 13_staying_alive/13_0_a_server_for_the_agent, cell 14
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 15
def error_answer(status, message, code):
    """An error in the form that the `openai` library reads."""
    error = {'message': message, 'type': 'invalid_request_error', 'param': None, 'code': code}
    return JSONResponse({'error': error}, status_code=status)


# 13_staying_alive/13_0_a_server_for_the_agent, cell 15
class Refusal(ValueError):
    """A request that cannot be served, with the HTTP status and the code that say why."""
    def __init__(self, message, status=400, code='invalid_request'):
        super().__init__(message)
        self.status, self.code = status, code


# 13_staying_alive/13_0_a_server_for_the_agent, cell 15
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 16
async def watch_client(http, generation, engine, notices_disconnect):
    """Wait until the client goes; note it, and cancel its generation if the server notices such things."""
    while (await http.receive())['type'] != 'http.disconnect':
        pass
    generation.left = True
    if notices_disconnect:
        engine.end(generation, 'cancelled')


# 13_staying_alive/13_0_a_server_for_the_agent, cell 16
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 17
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 18
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


# 13_staying_alive/13_0_a_server_for_the_agent, cell 19
def wait_until(condition, what, seconds=20.0):
    """Wait until `condition()` holds; RuntimeError after `seconds`, so that nothing waits for ever."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise RuntimeError(f'waited {seconds} s in vain for {what}')
        time.sleep(0.005)


# 13_staying_alive/13_0_a_server_for_the_agent, cell 19
def run_async(coroutine, seconds=60.0):
    """Run a coroutine in a thread with a loop of its own, since a notebook's is taken; at most `seconds`."""
    async def bounded():
        return await asyncio.wait_for(coroutine, seconds)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, bounded()).result()


# 13_staying_alive/13_0_a_server_for_the_agent, cell 19
@contextlib.contextmanager
def serve_agent(policy, tok, slots=8, token_seconds=0.0, notices_disconnect=True, finish=finish_of,
                lifetime=120.0):
    """TinyAgent behind OpenAI's protocol while the block lasts: yields the server, with its `engine`."""
    engine = Engine(policy, tok, slots, token_seconds)
    with LocalServer(create_app(engine, notices_disconnect, finish), lifetime) as server:
        server.engine = engine
        yield server
