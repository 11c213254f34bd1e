# Made by tools/export.py from notebooks/12_multi_turn/12_5_tool_errors.py. Do not edit: change it there, then `make export`.
# Body: b66900bfd1ba5c94
"""12.5 Give malformed calls a price, or they stay."""

import gymnasium as gym
import torch

from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.environment import STOPS, check_count, make_env
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, train_rl


# 12_multi_turn/12_5_tool_errors, cell 2
def refused_calls(info):
    """Well-formed calls that a tool refused (a second edit): those which no other count of `info` holds."""
    counted = info['n_invalid'] + info['n_reads'] + info['n_tests'] + info['n_edits'] + info['submitted']
    return info['n_turns'] - counted


# 12_multi_turn/12_5_tool_errors, cell 4
class EarlyStopEnv(gym.Wrapper):
    """Ends an episode at its `max_invalid`-th malformed call: terminated, not submitted, stop 'invalid'."""

    def __init__(self, env, max_invalid=1):
        super().__init__(env)
        self.max_invalid = check_count('max_invalid', max_invalid)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or info['n_invalid'] < self.max_invalid:
            return observation, reward, terminated, truncated, info
        return observation, reward, True, False, self.env.get_wrapper_attr('cut')('invalid')


# 12_multi_turn/12_5_tool_errors, cell 4
def make_early_stop_env(cfg):
    """The environment of a configuration, ended by the first malformed call."""
    return EarlyStopEnv(make_env(cfg))


# 12_multi_turn/12_5_tool_errors, cell 6
def stop_counts(trajs):
    """How many episodes ended for each reason of STOPS; ValueError if one has another reason, or none."""
    counts = dict.fromkeys(STOPS, 0)
    for traj in trajs:
        if traj.info['stop'] not in counts:
            raise ValueError(f"stop={traj.info['stop']!r} is not a reason to end: give finished episodes, "
                             f'whose stop is one of {", ".join(STOPS)}')
        counts[traj.info['stop']] += 1
    return counts


# 12_multi_turn/12_5_tool_errors, cell 7
def error_stats(trajs):
    """Episodes with a malformed call: number, share, pass rate (nan if none); of all: pass rate, length."""
    wrong = [traj for traj in trajs if traj.info['n_invalid']]
    n, passed = len(trajs), sum(traj.info['hidden_pass'] for traj in wrong)
    return {
        'episodes': n, 'wrong': len(wrong), 'wrong_passes': passed,
        'episodes_with_error': len(wrong) / n,
        'their_pass': passed / len(wrong) if wrong else float('nan'),
        'overall_pass': sum(traj.info['hidden_pass'] for traj in trajs) / n,
        'policy_tokens_per_episode': sum(int(traj.action_mask.sum()) for traj in trajs) / n,
    }


# 12_multi_turn/12_5_tool_errors, cell 14
EARLY_STOP_ARMS = {'early stop': {}}


# 12_multi_turn/12_5_tool_errors, cell 14
@cached
def train_with_early_stop(cfg, base_seed, steps, evaluation):
    """Train the RL base where a malformed call ends the episode; evaluated with that rule and without."""
    tok = build_tokenizer(make_tasks('all'))
    policy, heldout = make_rl_base(tok, base_seed), []
    history = train_rl(policy, make_tasks('train'), tok, cfg, steps, make_early_stop_env)
    for name, factory in (('error observation', make_env), ('early stop', make_early_stop_env)):
        rng = torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
        stats = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg, factory)
        heldout.append({'evaluated': name} | stats)
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


# 12_multi_turn/12_5_tool_errors, cell 15
def train_early_stop_arm(arm, seed=0, base_seed=0):
    """`train_with_early_stop` for a named arm."""
    return train_with_early_stop(RLConfig(seed=seed, **EARLY_STOP_ARMS[arm]), base_seed, STEPS, EVALUATION)


TOOL_ERRORS = Study('tool_errors', EARLY_STOP_ARMS, train_early_stop_arm)
