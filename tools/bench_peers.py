"""Time a training step beside TRL's GRPOTrainer, in one process on one thread.

    make bench-peers                                    installs TRL into .venv-peers, and runs this
    .venv-peers/bin/python -m tools.bench_peers --rounds 9

ours:             the default training step, all turns, in the real environment.
TRL, one turn:    64 completions in groups of 8: prompts of 40 tokens, exactly 15 new ones, no environment.
TRL, many turns:  our tasks, environment and limits, by `environment_factory`.

All policies have the same weights, those of the default run after ten steps, where episodes have their usual length: a
GPT-2 of the same shape computes the same logits. The learning rate is tiny, so that episodes stay as they are while the
clock runs. TRL runs at its cheapest: one update on the whole batch, so that it need not compute old log-probabilities
again (ours makes two updates), and no gradient checkpointing.

Times are this machine's; only ratios mean something elsewhere.
"""

import copy
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise, product
from typing import Annotated

import pandas as pd
import torch
import typer
from tqdm import tqdm

from agentrl.advantages import compute_advantages
from agentrl.base import make_rl_base
from agentrl.environment import make_env
from agentrl.episodes import MAX_CALL_TOKENS, collate
from agentrl.model import TinyAgent
from agentrl.sampling import sample_step
from agentrl.tasks import EDIT_OPS, apply_op, make_tasks, randomize_names
from agentrl.testing import run_tests
from agentrl.tokenizer import BOS, CALL, CALL_END, MARKERS, OBS, OBS_END, build_tokenizer
from agentrl.training import RLConfig, rl_update, train_rl

PEERS = ("trl", "transformers")
PROMPT_TOKENS, NEW_TOKENS = 40, 15
OURS = "ours, many turns", "float64"  # the row that the others are divided by
STILL = RLConfig(lr=1e-9)  # the default run, but the policy stays as it is
Steps = list[dict]  # seconds, CPU seconds, tokens, calls, reward and episodes of each training step
NOTES = """\
Calls and reward: means of an episode. Seconds, and CPU seconds, a step: medians over the rounds. Ratios: medians of the
ratios within a round; that of CPU time is less disturbed by other programs.
TRL, one turn: no environment, and a reward that costs nothing.
TRL, many turns: environment_factory (experimental there), with transformers' generate and without vLLM. It needed a
chat template and a response template in our format. An environment cannot end an episode there, so submit is a
message without a tool call. It keeps no cache between calls: each call reads its whole context again.
TRL in float64: weights and layers; its logits and log-probabilities are float32."""

# TRL speaks in chat messages. This renders ours in the format of the book; our policy writes <call> itself.
# Tools are not described in the prompt, and an assistant's message is rendered only by TRL's own checks.
CHAT_TEMPLATE = (
    f"{BOS}{{% for m in messages %}}{{% if m.role == 'user' %}} {{{{ m.content }}}}"
    f"{{% elif m.role == 'tool' %}} {OBS} {{{{ m.content }}}} {OBS_END}"
    "{% else %}{% for c in m.tool_calls or [] %}"
    f" {CALL} {{{{ c.function.name }}}}{{% for k, v in c.function.arguments.items() %}} {{{{ k }}}} {{{{ v }}}}"
    f"{{% endfor %}} {CALL_END}{{% endfor %}}{{% endif %}}{{% endfor %}}"
)
# And this reads them back: any call but submit is a call of the one tool, `call`; what is none ends the episode.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": rf"{OBS_END}|^{BOS} [\w ]+ \.",
    "fields": {
        "tool_calls": {
            "open_pattern": rf"{CALL}(?! submit {CALL_END})",
            "close": CALL_END,
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "call", "arguments": {"text": "{content}"}}},
        },
        "content": {},
    },
}


def missing() -> list[str]:
    """The peers that are not installed here."""
    return [name for name in PEERS if find_spec(name) is None]


def silence() -> None:
    """No network, no progress bars, no advice: must run before TRL is imported."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
    warnings.simplefilter("ignore")
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()


@cache
def train_tasks() -> list:
    return make_tasks("train")


def run_all_tests() -> None:
    """Fill the memory of verdicts: both sides then find every program of one edit tested."""
    for task in train_tasks():
        for source in (task.source, *(apply_op(task.source, op) for op in EDIT_OPS)):
            for tests in (task.visible_tests, task.hidden_tests):
                run_tests(source, tests)


def now() -> tuple[float, float]:
    """The clock, and the CPU time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def elapsed(before: tuple[float, float], after: tuple[float, float]) -> dict[str, float]:
    """What passed between two calls of `now`."""
    return {"seconds": after[0] - before[0], "CPU seconds": after[1] - before[1]}


# Ours


def ours_step(policy: TinyAgent, opt: torch.optim.Optimizer, tok, cfg: RLConfig, rng: torch.Generator) -> list:
    """One training step: the episodes of all groups, and the update; returns the episodes."""
    trajs = sample_step(policy, train_tasks(), tok, cfg, rng)
    batch = collate(trajs, tok.pad_id)
    rl_update(policy, opt, batch, compute_advantages(batch, cfg), cfg)
    return trajs


def trained_policy(tok) -> TinyAgent:
    """The default run's policy after ten steps."""
    policy = make_rl_base(tok)
    train_rl(policy, train_tasks(), tok, RLConfig(), steps=10)
    return policy


def in_dtype(policy: TinyAgent, name: str) -> TinyAgent:
    """A copy of the policy in the dtype of this name."""
    return copy.deepcopy(policy).to(getattr(torch, name))


def our_steps(start: TinyAgent, tok, cfg: RLConfig, seed: int, dtype: str, n_steps: int) -> Steps:
    """Training steps of ours."""
    policy, rng = in_dtype(start, dtype), torch.Generator().manual_seed(seed)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5)
    steps = []
    for _ in range(n_steps):
        started = now()
        trajs = ours_step(policy, opt, tok, cfg, rng)
        times = elapsed(started, now())
        calls = sum(traj.info["n_turns"] for traj in trajs)
        tokens, reward = sum(len(traj.ids) for traj in trajs), sum(traj.reward for traj in trajs)
        counts = {"tokens": tokens, "calls": calls, "reward": reward, "episodes": len(trajs)}
        steps.append(counts | times)
    return steps


# The peer's policy and tokenizer


def gpt2_shape(policy: TinyAgent) -> dict:
    """GPT2Config's arguments for the function that `policy` computes."""
    return {
        "vocab_size": policy.vocab_size,
        "n_positions": policy.max_len,
        "n_embd": policy.head.in_features,
        "n_layer": len(policy.blocks),
        "n_head": policy.n_heads,
        "n_inner": policy.blocks[0].mlp[0].out_features,
        "activation_function": "relu",
        "tie_word_embeddings": False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }


def gpt2_weights(policy: TinyAgent) -> dict[str, torch.Tensor]:
    """The policy's weights under GPT-2's names. Its layers are transposed, its keys have a bias: zero."""
    weights = {
        "transformer.wte.weight": policy.tokens.weight,
        "transformer.wpe.weight": policy.positions.weight,
        "transformer.ln_f.weight": policy.norm.weight,
        "transformer.ln_f.bias": policy.norm.bias,
        "lm_head.weight": policy.head.weight,
    }
    for n, block in enumerate(policy.blocks):
        q, k, v = block.query, block.key, block.value
        parts = {
            "ln_1": (block.norm1.weight, block.norm1.bias),
            "attn.c_attn": (
                torch.cat([q.weight, k.weight, v.weight]).T,
                torch.cat([q.bias, 0 * q.bias, v.bias]),
            ),
            "attn.c_proj": (block.out.weight.T, block.out.bias),
            "ln_2": (block.norm2.weight, block.norm2.bias),
            "mlp.c_fc": (block.mlp[0].weight.T, block.mlp[0].bias),
            "mlp.c_proj": (block.mlp[2].weight.T, block.mlp[2].bias),
        }
        for name, (weight, bias) in parts.items():
            weights |= {
                f"transformer.h.{n}.{name}.weight": weight,
                f"transformer.h.{n}.{name}.bias": bias,
            }
    return {name: weight.detach().clone() for name, weight in weights.items()}


def make_gpt2(tok, policy: TinyAgent):
    """A GPT-2 that computes the policy's logits; RuntimeError if it does not."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": tok.stoi[BOS], "eos_token_id": tok.call_end_id, "pad_token_id": tok.pad_id}
    model = GPT2LMHeadModel(GPT2Config(**gpt2_shape(policy), **ends)).to(policy.head.weight.dtype)
    model.load_state_dict(gpt2_weights(policy))
    ids = torch.arange(2 * 40).reshape(2, 40) % len(tok)
    with torch.no_grad():
        if (gap := float((model.eval()(ids).logits - policy(ids)).abs().max())) > 1e-3:
            raise RuntimeError(f"GPT-2's logits differ from ours by {gap:.2g}: a time means nothing then")
    return model


def make_peer_tokenizer(tok):
    """The book's words as a tokenizer of transformers; a call's end is the end of a completion."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    unknown = "..."  # for the dummy words of TRL's checks
    words = Tokenizer(models.WordLevel(tok.stoi, unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    peer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BOS,
        eos_token=CALL_END,
        pad_token=tok.itos[tok.pad_id],
        unk_token=unknown,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    peer.response_template = RESPONSE_TEMPLATE
    return peer


# The peer's training steps


class CallEnv:
    """The book's environment as TRL wants one: it calls `reset`, and offers all other public methods as tools."""

    def __init__(self, cfg: RLConfig, rng: torch.Generator):
        self._env, self._cfg, self._rng = make_env(cfg), cfg, rng

    def reset(self, task: int, **_) -> str:
        named = randomize_names(train_tasks()[task], self._rng)
        return self._env.reset(options={"task": named, "max_turns": self._cfg.max_turns})[0]

    def call(self, text: str) -> str:
        """
        Make a call.

        Args:
            text: The words of the call.
        """
        return self._env.step(f"{CALL} {text} {CALL_END}")[0]

    def _end(self, message: dict) -> float:
        """The reward of an episode that ended with this message; one that is no submit is a malformed call."""
        return self._env.step(message["content"] + f" {CALL_END}")[1]


def repair_reward(prompts, completions, completion_ids, environments, log: Steps, **_) -> list[float]:
    """The episodes' rewards; notes what `Steps` holds in `log`, but the time."""
    rewards = [env._end(messages[-1]) for env, messages in zip(environments, completions, strict=True)]
    prompt_tokens = sum(len(f"{BOS} {prompt[-1]['content']}".split()) for prompt in prompts)
    calls = sum(message["role"] == "assistant" for messages in completions for message in messages)
    tokens = prompt_tokens + sum(map(len, completion_ids))
    log.append({"tokens": tokens, "calls": calls, "reward": sum(rewards), "episodes": len(prompts)})
    return rewards


def parity_reward(completion_ids, log: Steps, **_) -> list[float]:
    """A reward that differs within a group and means nothing; notes the same in `log`."""
    n = len(completion_ids)
    tokens = n * PROMPT_TOKENS + sum(map(len, completion_ids))
    log.append({"tokens": tokens, "calls": n, "reward": float("nan"), "episodes": n})
    return [float(sum(ids) % 2) for ids in completion_ids]


def peer_arguments(cfg: RLConfig, seed: int, n_steps: int, folder: str) -> dict:
    """GRPOConfig's arguments that both forms share: our sizes, float throughout, and nothing written or reported."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": cfg.prompts_per_step * cfg.group_size,
        "num_generations": cfg.group_size,
        "max_steps": n_steps,
        "learning_rate": cfg.lr,
        "lr_scheduler_type": "constant",
        "max_grad_norm": cfg.max_grad_norm,
        "temperature": cfg.temperature,
        "epsilon": cfg.clip,
        "seed": seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def peer_steps(form: Callable, start: TinyAgent, tok, cfg: RLConfig, seed: int, dtype: str, n_steps: int) -> Steps:
    """Training steps of GRPOTrainer; `form(tok, cfg, seed, log)` gives its limits and its data."""
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        def on_train_begin(self, *_, **__):
            self.times = [now()]

        def on_step_end(self, *_, **__):
            self.times.append(now())

    log, clock = [], Clock()
    limits, data = form(tok, cfg, seed, log)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=make_gpt2(tok, in_dtype(start, dtype)),
            args=GRPOConfig(**peer_arguments(cfg, seed, n_steps, folder), **limits),
            processing_class=make_peer_tokenizer(tok),
            callbacks=[clock],
            **data,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    if (used := trainer.model.dtype) != getattr(torch, dtype) or len(log) != n_steps:
        raise RuntimeError(f"TRL made {len(log)} steps in {used}; asked for were {n_steps} in {dtype}")
    times = [elapsed(before, after) for before, after in pairwise(clock.times)]
    return [counts | spent for counts, spent in zip(log, times, strict=True)]


def one_turn(tok, cfg: RLConfig, seed: int, log: Steps) -> tuple[dict, dict]:
    """Prompts of random words, and completions of exactly NEW_TOKENS tokens."""
    from datasets import Dataset

    words = tok.itos[len(MARKERS) :]
    rng = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(words), (len(train_tasks()), PROMPT_TOKENS), generator=rng).tolist()
    limits = {"max_completion_length": NEW_TOKENS, "generation_kwargs": {"min_new_tokens": NEW_TOKENS}}
    prompts = Dataset.from_dict({"prompt": [" ".join(words[n] for n in row) for row in picks]})
    return limits, {"train_dataset": prompts, "reward_funcs": named(parity_reward, log)}


def many_turns(tok, cfg: RLConfig, seed: int, log: Steps) -> tuple[dict, dict]:
    """The book's episodes: `reset` gives the issue, with fresh names; as many calls, each as long, in our context."""
    from datasets import Dataset

    n, rng = len(train_tasks()), torch.Generator().manual_seed(seed)
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * n, "task": range(n)})
    context = TinyAgent(len(tok)).max_len
    limits = {
        "max_completion_length": context - 3 * MAX_CALL_TOKENS,  # leaves room for the prompt and a call
        "max_tool_calling_iterations": cfg.max_turns - 1,
        "generation_kwargs": {"max_new_tokens": MAX_CALL_TOKENS},
    }
    data = {"train_dataset": rows, "reward_funcs": named(repair_reward, log)}
    return limits, data | {"environment_factory": partial(CallEnv, cfg, rng)}


def named(reward: Callable, log: Steps) -> Callable:
    """The reward function with its log bound; TRL wants a name."""
    bound = partial(reward, log=log)
    bound.__name__ = reward.__name__
    return bound


# The table


def measure(rounds: int, steps: int) -> pd.DataFrame:
    """Each side in turn, round by round; means over a round's steps, of which the first does not count."""
    tok = build_tokenizer(make_tasks("all"))
    run_all_tests()
    start = trained_policy(tok)
    sides = {
        "ours, many turns": our_steps,
        "TRL, one turn": partial(peer_steps, one_turn),
        "TRL, many turns": partial(peer_steps, many_turns),
    }
    cases = [(what, dtype) for what in sides for dtype in ("float64", "float32")]
    rows = []
    for seed, (what, dtype) in tqdm(list(product(range(rounds), cases)), desc="bench"):
        made = pd.DataFrame(sides[what](start, tok, STILL, seed, dtype, steps + 1)[1:])
        rows.append({"round": seed, "what": what, "dtype": dtype} | made.mean().to_dict())
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a side and dtype, from the rows of all rounds."""
    ours = rows.set_index(["what", "dtype"]).loc[[OURS]].set_index("round")
    for kind in ("seconds", "CPU seconds"):
        rows = rows.assign(**{f"{kind} / ours": rows[kind] / rows["round"].map(ours[kind])})
    sides = rows.groupby(["what", "dtype"], sort=False)
    median, seconds = sides.median(), sides["seconds"]
    return pd.DataFrame(
        {
            "calls": (median["calls"] / median["episodes"]).round(1),
            "reward": (median["reward"] / median["episodes"]).round(2),
            "tokens a step": median["tokens"].round().astype(int),
            "seconds a step": median["seconds"].round(3),
            "min": seconds.min().round(3),
            "max": seconds.max().round(3),
            "tokens a second": (median["tokens"] / median["seconds"]).round().astype(int),
            "ratio to ours": median["seconds / ours"].round(2),
            "CPU s": median["CPU seconds"].round(3),
            "CPU ratio": median["CPU seconds / ours"].round(2),
        }
    ).reset_index()


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each side is timed, in turn.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed in a round.")] = 4,
) -> None:
    """Print the table."""
    if absent := missing():
        typer.echo(f"not installed here: {', '.join(absent)}. Run `make bench-peers`: it makes .venv-peers", err=True)
        raise typer.Exit(1)
    torch.set_num_threads(1)
    silence()
    print(summary(measure(rounds, steps)).to_string(index=False, na_rep="-"), NOTES, sep="\n\n")


if __name__ == "__main__":
    typer.run(main)
