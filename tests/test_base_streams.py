import pandas as pd
import pytest
import torch

from agentrl.base import make_rl_base
from agentrl.base_streams import BASE_ARMS, BASE_STREAMS, gradient_shares, length_stats, measure_base
from agentrl.environment import make_env
from agentrl.sampling import sample_groups
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig
from tools.notebooks import ROOT

TOK = build_tokenizer(make_tasks("all"))


@pytest.mark.parametrize("arm", ["6 turns", "cap 8"])
def test_a_stored_stream_is_what_the_base_does(arm):
    row = measure_base(arm, seed=3)["heldout"]
    stored = pd.read_csv(ROOT / "figures" / "data" / "base_streams_heldout.csv")
    stored = stored[(stored["arm"] == arm) & (stored["seed"] == 3) & (stored["base"] == 0)].iloc[0]
    assert {name: stored[name] for name in row} == pytest.approx(row, nan_ok=True)
    assert row["attempt_at_0.3"] == pytest.approx(row["pass_rate"] - 0.3 * row["turns"])
    assert len(BASE_STREAMS.seeds) == 10 and set(BASE_STREAMS.arms) == set(BASE_ARMS)


def test_gradient_is_where_the_mask_is():
    trajs = sample_groups(make_rl_base(TOK), make_tasks("train")[:1], TOK, RLConfig(), torch.Generator().manual_seed(0))
    assert gradient_shares(make_rl_base(TOK), trajs, TOK) == {"gradient_own": 1.0, "gradient_others": 0.0}
    for traj in trajs:
        traj.action_mask = torch.ones_like(traj.action_mask)  # trained on everything
    assert gradient_shares(make_rl_base(TOK), trajs, TOK)["gradient_others"] == 1.0


def test_lengths_are_counted_by_episode():
    rng = torch.Generator().manual_seed(5)
    trajs = sample_groups(make_rl_base(TOK), make_tasks("train"), TOK, RLConfig(max_turns=24), rng, make_env)
    stats = length_stats(trajs)
    assert stats["max_tokens"] == max(len(traj.ids) for traj in trajs) <= 256
    assert 0 < stats["lost_128"] < stats["lost_64"] < 1 and stats["lost_64_masked"] < stats["lost_64"]
    total = sum(len(traj.ids) - 1 for traj in trajs)
    assert stats["policy_share"] * total == pytest.approx(sum(int(traj.action_mask.sum()) for traj in trajs))
    assert stats["overflow"] == sum(traj.info["stop"] == "context" for traj in trajs) / len(trajs)
