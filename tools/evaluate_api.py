"""Play the gym's episodes with any model behind an OpenAI-compatible server, and print its score.

    OPENAI_API_KEY=... python -m tools.evaluate_api --base-url https://HOST/v1 --model NAME
    python -m tools.evaluate_api --base-url http://127.0.0.1:8000/v1 --model NAME --key-env "" --samples 4

An episode that takes too long, or is lost on the line, counts as errored and not as failed (section 13.9).
"""

import asyncio
import os
from typing import Annotated

import typer
from openai import APIError
from tqdm import tqdm

from agentrl.api_evaluation import check_evaluation, evaluate_api, score_records, score_text
from agentrl.tasks import make_tasks


def key_from(name: str) -> str:
    """The key in the environment variable `name`; no name means a server that asks for none."""
    if name and not os.environ.get(name):
        raise typer.BadParameter(f'there is no key in the environment variable {name}; use --key-env "" for none')
    return os.environ[name] if name else "none"


def main(
    base_url: Annotated[str, typer.Option(help="Where the server is, up to and with /v1.")],
    model: Annotated[str, typer.Option(help="The model's name there.")],
    key_env: Annotated[str, typer.Option(help="Environment variable that holds the key; empty: none.")] = (
        "OPENAI_API_KEY"
    ),
    tasks: Annotated[str, typer.Option(help="heldout, train or all.")] = "heldout",
    samples: Annotated[int, typer.Option(help="Episodes of each task.")] = 1,
    concurrency: Annotated[int, typer.Option(help="Episodes at a time.")] = 8,
    episode_seconds: Annotated[float, typer.Option(help="Limit of an episode on the wall clock.")] = 600.0,
) -> None:
    """Print how many of the scored episodes passed, with a 95% Wilson interval, and how many errored."""
    try:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url={base_url!r} must begin with http:// or https://")
        check_evaluation(model, samples, concurrency, episode_seconds)
        n = len(make_tasks(tasks)) * samples
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    key = key_from(key_env)
    try:
        with tqdm(total=n, unit="episode") as bar:
            settings = (tasks, samples, concurrency, episode_seconds)
            records = asyncio.run(evaluate_api(base_url, model, key, *settings, done=lambda _: bar.update()))
    except APIError as error:
        print(f"error: {error}")
        raise typer.Exit(1) from None
    score = score_records(records)
    print(f"{model}, {tasks} tasks, {samples} a task: {score_text(score)}")
    raise typer.Exit(0 if score["scored"] else 1)


if __name__ == "__main__":
    typer.run(main)
