# Made by tools/export.py from notebooks/12_multi_turn/12_7_design_problems.py. Do not edit: change it there, then `make export`.
# Body: 01c6f010938186ca
"""12.7 Diagnose four failures, and run each beside its cure."""

from dataclasses import replace
from functools import partial
from math import isnan

import gymnasium as gym
import torch

from agentrl.advantages import compare_kept, compute_advantages
from agentrl.arms import EVALUATION, STEPS, Study
from agentrl.base import make_rl_base
from agentrl.cache import cached
from agentrl.critic import batch_values, critic_step, fit_critic, make_critic
from agentrl.environment import make_env
from agentrl.episodes import MAX_CALL_TOKENS, OWNER, Episode, collate, make_trajectory
from agentrl.exercises import exercise
from agentrl.gradient import keep_only
from agentrl.sampling import CachedReader, run_episodes, sample_groups, sample_step
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, evaluate, minibatch_step, rl_update, train_rl

# 12_multi_turn/12_7_design_problems, cell 2
CURE_ARMS, CURES = {}, {}                                               # arm: settings; arm: maker of parts


# 12_multi_turn/12_7_design_problems, cell 2
def cure(arm, **settings):
    """Register make_parts(cfg, steps) -> keyword arguments of train_rl as an arm of PATHOLOGIES."""
    def register(make_parts):
        CURE_ARMS[arm], CURES[arm] = settings, make_parts
        return make_parts

    return register


# 12_multi_turn/12_7_design_problems, cell 2
def without_nan(history):
    """The history with clip_fraction 0 in a step of which a minibatch kept no token (`coasting_step`)."""
    return [row | {'clip_fraction': 0.0 if isnan(row['clip_fraction']) else row['clip_fraction']}
            for row in history]


# 12_multi_turn/12_7_design_problems, cell 2
@cached
def train_cured(arm, cfg, base_seed, steps, evaluation):
    """Train the RL base under `cfg` with an arm's parts: dict of weights, history and heldout, as in 9.3."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(evaluation['seed'] + cfg.seed)
    policy, parts = make_rl_base(tok, base_seed), CURES[arm](cfg, steps)
    history = without_nan(train_rl(policy, make_tasks('train'), tok, cfg, steps, **parts))
    heldout = evaluate(policy, make_tasks('heldout'), tok, evaluation['samples'], rng, cfg,
                       parts.get('env_factory', make_env))
    return {'weights': policy.state_dict(), 'history': history, 'heldout': heldout}


# 12_multi_turn/12_7_design_problems, cell 2
def train_pathology(arm, seed=0, base_seed=0):
    """`train_cured` for a named arm; ValueError for a name that is not registered."""
    if arm not in CURES:
        raise ValueError(f'arm={arm!r} is not known; choose one of {", ".join(CURES)}')
    return train_cured(arm, RLConfig(seed=seed, **CURE_ARMS[arm]), base_seed, STEPS, EVALUATION)


PATHOLOGIES = Study('pathologies', CURE_ARMS, train_pathology)


# 12_multi_turn/12_7_design_problems, cell 4
def cost_at(step, steps, cost):
    """A cost that rises in a straight line from 0 at the first of `steps` steps to `cost` at the last."""
    return cost * step / max(steps - 1, 1)


# 12_multi_turn/12_7_design_problems, cell 4
@cure('cost annealed in', step_penalty=0.3)
def anneal_cost(cfg, steps):
    """A sampler that charges cost_at of its own count of calls, one call of it a training step."""
    costs = iter([cost_at(step, steps, cfg.step_penalty) for step in range(steps)])

    def sample(policy, tasks, tok, cfg, generator, env_factory):
        return sample_step(policy, tasks, tok, replace(cfg, step_penalty=next(costs)), generator, env_factory)

    return {'sample': sample}


# 12_multi_turn/12_7_design_problems, cell 4
class FreeCalls(gym.Wrapper):
    """Charges `cost` for each call after the first `free` of an episode."""

    def __init__(self, env, free, cost):
        super().__init__(env)
        self.free, self.cost = free, cost

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward - self.cost * (info['n_turns'] > self.free), terminated, truncated, info


# 12_multi_turn/12_7_design_problems, cell 4
@cure('four calls free', step_penalty=0.3)
def allow_four(cfg, steps):
    """An environment that charges step_penalty from the fifth call on."""
    def env_factory(cfg):
        return FreeCalls(make_env(replace(cfg, step_penalty=0.0)), free=4, cost=cfg.step_penalty)

    return {'env_factory': env_factory}


# 12_multi_turn/12_7_design_problems, cell 10
TRUNCATED = ('turn_budget', 'context', 'length')                        # the STOPS that are a limit's doing


# 12_multi_turn/12_7_design_problems, cell 10
def is_truncated(trajs):
    """Which episodes were cut off by a limit: bool [B]."""
    return torch.tensor([traj.info['stop'] in TRUNCATED for traj in trajs])


# 12_multi_turn/12_7_design_problems, cell 10
def treated(treat):
    """A `prepare` for train_rl: group advantages of the batch that treat(batch, cut [B], cfg) returns."""
    def prepare(trajs, tok, cfg):
        batch = treat(collate(trajs, tok.pad_id), is_truncated(trajs), cfg)
        return batch, compute_advantages(batch, cfg)

    return prepare


# 12_multi_turn/12_7_design_problems, cell 10
def price_truncated(batch, cut, cfg):
    """A truncated episode earns what a wrong submission earns."""
    return batch | {'reward': batch['reward'] + cfg.wrong_submit * cut}


# 12_multi_turn/12_7_design_problems, cell 10
@cure('truncation priced', wrong_submit=-1.0)
def charge_truncation(cfg, steps):
    """Truncated episodes earn wrong_submit."""
    return {'prepare': treated(price_truncated)}


# 12_multi_turn/12_7_design_problems, cell 10
def mask_truncated(batch, cut, cfg):
    """No token of a truncated episode is trained on."""
    return batch | {'action_mask': batch['action_mask'] & ~cut[:, None]}


# 12_multi_turn/12_7_design_problems, cell 10
def masked_advantages(batch, cut, cfg):
    """Advantages [B, T-1] of what mask_truncated keeps, in groups whose means count the cut episodes too."""
    return keep_only(compute_advantages(batch, cfg), mask_truncated(batch, cut, cfg)['action_mask'])


# 12_multi_turn/12_7_design_problems, cell 11
def coasting_step(policy, opt, minibatch, cfg, log_probs):
    """minibatch_step, but Adam's momentum moves the weights where nothing is kept; clip_fraction nan then."""
    if minibatch['action_mask'].any():
        return minibatch_step(policy, opt, minibatch, cfg, log_probs)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    opt.step()
    return {'clip_fraction': float('nan'), 'grad_norm': 0.0}


COASTING = partial(rl_update, step=coasting_step)


# 12_multi_turn/12_7_design_problems, cell 11
@cure('truncation masked', wrong_submit=-1.0)
def leave_out_truncation(cfg, steps):
    """Truncated episodes are left out of the update, but not of their groups' means."""
    def prepare(trajs, tok, cfg):
        batch, cut = collate(trajs, tok.pad_id), is_truncated(trajs)
        return mask_truncated(batch, cut, cfg), masked_advantages(batch, cut, cfg)

    return {'prepare': prepare, 'update': COASTING}


# 12_multi_turn/12_7_design_problems, cell 12
@cure('truncation dropped', wrong_submit=-1.0)
def drop_truncation(cfg, steps):
    """Truncated episodes are left out of the update and of the comparison with their siblings."""
    def prepare(trajs, tok, cfg):
        cut = is_truncated(trajs)
        batch = mask_truncated(collate(trajs, tok.pad_id), cut, cfg)
        return batch, compare_kept(batch['reward'], ~cut, cfg)[:, None] * batch['action_mask']

    return {'prepare': prepare, 'update': COASTING}


# 12_multi_turn/12_7_design_problems, cell 15
def cut_values(critic, batch):
    """The critic's value before the last token that the policy wrote: [B]."""
    last = batch['action_mask'].cumsum(1).argmax(1)                     # [B], column of the last kept token
    return batch_values(critic, batch).gather(1, last[:, None])[:, 0]


# 12_multi_turn/12_7_design_problems, cell 15
class Bootstrap:
    """Adds a critic's value to the reward of cut episodes (Pardo et al. 2018), then fits it one step."""

    def __init__(self, critic):
        self.critic, self.opt = critic, torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)

    def __call__(self, batch, cut, cfg):
        batch = batch | {'reward': batch['reward'] + cut_values(self.critic, batch) * cut}
        returns = batch['reward'][:, None].expand(batch['action_mask'].shape)   # no reward before the end
        critic_step(self.critic, self.opt, batch, returns)
        return batch


# 12_multi_turn/12_7_design_problems, cell 16
@cached
def long_critic_weights(wrong_submit, max_turns, n, fit_steps):
    """Weights of a critic of the RL base, fitted to its submitted episodes under a budget of `max_turns`."""
    tok, rng = build_tokenizer(make_tasks('all')), torch.Generator().manual_seed(0)
    policy, cfg = make_rl_base(tok), RLConfig(max_turns=max_turns, wrong_submit=wrong_submit)
    trajs = sample_groups(policy, make_tasks('train'), tok, cfg, rng, n=n)
    batch = collate([traj for traj in trajs if traj.info['submitted']], tok.pad_id)
    critic = make_critic(policy)
    opt = torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)
    fit_critic(critic, opt, batch, batch['reward'][:, None].expand(batch['logp'].shape), fit_steps, rng)
    return critic.state_dict()


# 12_multi_turn/12_7_design_problems, cell 16
def make_long_critic(wrong_submit=-1.0, max_turns=24, n=8, fit_steps=30):
    """A critic that says what the RL base's episodes are worth if there is time to finish; kept on disk."""
    critic = make_critic(make_rl_base(build_tokenizer(make_tasks('all'))))
    critic.load_state_dict(long_critic_weights(wrong_submit, max_turns, n, fit_steps))
    return critic


# 12_multi_turn/12_7_design_problems, cell 16
@cure('truncation bootstrapped', wrong_submit=-1.0)
def bootstrap_truncation(cfg, steps):
    """Truncated episodes earn what the critic expects of them."""
    return {'prepare': treated(Bootstrap(make_long_critic(cfg.wrong_submit)))}


# 12_multi_turn/12_7_design_problems, cell 18
class TurnsLeft(gym.Wrapper):
    """Ends each observation with `turns left n`, a digit a word."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        left = self.env.get_wrapper_attr('budget') - info['n_turns']
        return f'{observation} turns left {" ".join(str(left))}', reward, terminated, truncated, info


# 12_multi_turn/12_7_design_problems, cell 18
@cure('turns left shown', wrong_submit=-1.0)
def show_turns_left(cfg, steps):
    """An environment whose observations say how many turns are left."""
    return {'env_factory': lambda cfg: TurnsLeft(make_env(cfg))}


# 12_multi_turn/12_7_design_problems, cell 18
@cure('turns left priced', wrong_submit=-1.0)
def price_turns_left(cfg, steps):
    """The turns left are shown, and truncated episodes earn wrong_submit."""
    return show_turns_left(cfg, steps) | {'prepare': treated(price_truncated)}


# 12_multi_turn/12_7_design_problems, cell 22
def cap_words(text, cap):
    """`text` if it has at most `cap` words, else its head, the marker `...` and its tail, `cap` in all."""
    words = text.split()
    if cap < 3:
        raise ValueError(f'cap={cap} must be at least 3: a first word, the marker and a last word')
    if len(words) <= cap:
        return text
    head = cap // 2
    return ' '.join([*words[:head], '...', *words[len(words) - (cap - 1 - head):]])


# 12_multi_turn/12_7_design_problems, cell 22
class CappedObservations(gym.Wrapper):
    """Shortens each observation to `cap` words; the issue stays whole."""

    def __init__(self, env, cap):
        super().__init__(env)
        self.cap = cap

    def step(self, action):
        observation, *rest = self.env.step(action)
        return cap_words(observation, self.cap), *rest


# 12_multi_turn/12_7_design_problems, cell 23
def window_rollouts(policy, envs, tasks, tok, max_turns, window, generator):
    """Episodes as in rollout_batch, cut at `window` <= policy.max_len tokens; draws do not depend on it."""
    if window > policy.max_len:
        raise ValueError(f'window={window} is more than the {policy.max_len} positions of the policy')
    episodes = [Episode(env, task, tok, max_turns, window) for env, task in zip(envs, tasks, strict=True)]
    noise = torch.rand(len(episodes), policy.max_len, generator=generator, dtype=torch.float64)
    run_episodes(CachedReader(policy, len(episodes)), episodes, 1.0, noise)
    return [make_trajectory(episode) for episode in episodes]


# 12_multi_turn/12_7_design_problems, cell 23
def window_needed(traj, keep_obs=None):
    """Tokens of the longest view before a call, and room for it; keep_obs: the last observations kept."""
    views = []
    for call in range(traj.info['n_turns'] + (traj.info['stop'] == 'context')):
        old = 0 if keep_obs is None else call - keep_obs                # the first turn that is shown
        shown = (traj.owner != OWNER['tool']) | (traj.turn >= old)      # [T]
        views.append(int((shown & (traj.turn < call)).sum()))
    return max(views) + MAX_CALL_TOKENS


# 12_multi_turn/12_7_design_problems, cell 27
@exercise
def check_turns_left(wrap):
    """'right' if wrap(env) ends each observation with `turns left n`, changing nothing else; else why not."""
    for budget in (3, 12):
        plain, task = make_env(RLConfig(max_turns=budget)), make_tasks('train')[0]
        shown = wrap(make_env(RLConfig(max_turns=budget)))
        if (start := shown.reset(options={'task': task})) != plain.reset(options={'task': task}):
            return f'reset should give what it gave before, but gives {start!r}'
        for call in ('read', 'test'):
            text, *rest = plain.step(f'<call> {call} </call>')
            found, *others = shown.step(f'<call> {call} </call>')
            wanted = f'{text} turns left {" ".join(str(budget - rest[-1]["n_turns"]))}'
            if found != wanted:
                return (f'after {call!r}, of {budget} turns, the observation should be {wanted!r} '
                        f'but is {found!r}')
            if others != rest:
                return f'after {call!r} reward, ends and info should be {rest} but are {others}'
    return 'right'


# 12_multi_turn/12_7_design_problems, cell 28
@exercise
def check_cut_rewards(rewards_of):
    """'right' if rewards_of(reward, cut, value), all [B], bootstraps what was cut, no gradient; else why."""
    reward = torch.tensor([1.0, -1.0, -0.2, 0.0], dtype=torch.float64)
    cut = torch.tensor([False, False, True, True])
    value = torch.tensor([0.5, 0.5, 0.75, -0.6], dtype=torch.float64, requires_grad=True)
    found = rewards_of(reward, cut, value)
    wanted = reward + value.detach() * cut
    if found.shape != wanted.shape:
        return f'the result has shape {list(found.shape)}; it must be [4], one reward an episode'
    if found.requires_grad:
        return 'the critic would be trained to please the policy: detach its value'
    for b, gap in enumerate((found - wanted).abs().tolist()):
        if gap > 1e-9:
            kind = 'cut, ' if cut[b] else 'not cut, '
            return (f'an episode that was {kind}earned {reward[b].item()} and has value {value[b].item()} '
                    f'should count as {wanted[b].item():.2f} but counts as {found[b].item():.2f}')
    return 'right'
