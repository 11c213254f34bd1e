# Made by tools/export.py from notebooks/13_staying_alive/13_1_weights_in_the_loop.py. Do not edit: change it there, then `make export`.
# Body: 99b55834afc36d0e
"""13.1.1 Train on what an older policy sampled."""

import copy
from collections import deque

import torch
from tqdm import tqdm

from agentrl.aggregation import loss_weights
from agentrl.base import DEMONSTRATED, make_rl_base
from agentrl.cache import cached
from agentrl.model import selected_log_probs
from agentrl.packing import hidden_where
from agentrl.sampling import sample_groups, sample_step
from agentrl.tasks import make_tasks
from agentrl.tis import (
    averaged_log_ratio,
    clipped_weights,
    floored_where,
    gradient_share,
    icepop_weights,
    importance_ratio,
    ratio_metrics,
    summed_log_ratio,
)
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig, behavior_stats, evaluate, group_batch, rl_update

# 13_staying_alive/13_1_weights_in_the_loop, cell 2
WEIGHINGS = {
    'low 0.5': lambda x, mask, advantages: clipped_weights(x, mask, low=0.5),
    'low 0': lambda x, mask, advantages: clipped_weights(x, mask, low=0.0),
    'no weight': lambda x, mask, advantages: mask.double(),
    'IcePop': lambda x, mask, advantages: icepop_weights(x, mask),
    'floor, A < 0': lambda x, mask, advantages: floored_where(x, mask, advantages < 0),
    'floor, A > 0': lambda x, mask, advantages: floored_where(x, mask, advantages > 0),
    'geometric mean': lambda x, mask, advantages: clipped_weights(averaged_log_ratio(x, mask), mask),
    'whole sequence': lambda x, mask, advantages: clipped_weights(summed_log_ratio(x, mask), mask),
}


# 13_staying_alive/13_1_weights_in_the_loop, cell 4
def score_tokens(policy, batch, temperature):
    """Log-probabilities [B, T-1] of the policy's tokens, with graph, and entropies [B, T-1]; 0 elsewhere."""
    ids, mask = batch['ids'], batch['action_mask'].bool()
    hidden, row, column = hidden_where(policy, ids[:, :-1], batch['length'] - 1, mask)
    logits = policy.head(hidden) / temperature                                    # [M, V]
    logp = selected_log_probs(logits, ids[row, column + 1])                       # [M]
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()   # [M]
    empty = logp.new_zeros(mask.shape)
    return empty.index_put((row, column), logp), empty.index_put((row, column), entropy)


# 13_staying_alive/13_1_weights_in_the_loop, cell 6
def weigh_batch(policy, batch, advantages, weighing, cfg):
    """Importance weights for a batch that an older policy sampled: what each token gets, and metrics.

    Arrays [B, T-1]: rollout_logp as sampled, train_logp of `policy`, entropy, advantage, ratio, weight.
    """
    with torch.no_grad():
        logp, entropy = score_tokens(policy, batch, cfg.temperature)
    mask, log_ratio = batch['action_mask'], logp - batch['logp']
    weight = WEIGHINGS[weighing](log_ratio, mask, advantages)
    metrics = ratio_metrics(log_ratio, weight, advantages, mask) | {
        'entropy': (entropy.sum() / mask.sum()).item(),
        'parameter_norm': torch.nn.utils.parameters_to_vector(policy.parameters()).norm().item()}
    tokens = {'rollout_logp': batch['logp'], 'train_logp': logp, 'entropy': entropy,
              'advantage': advantages, 'ratio': importance_ratio(log_ratio, mask), 'weight': weight}
    return tokens, metrics


# 13_staying_alive/13_1_weights_in_the_loop, cell 6
def gradient_below(policy, batch, tokens, cfg, low=0.5):
    """`gradient_share` of the tokens with a ratio under `low`, in the first gradient of a weighed batch."""
    mask, logp = batch['action_mask'], score_tokens(policy, batch, cfg.temperature)[0]
    coefficients = loss_weights(mask, cfg.loss_agg) * tokens['weight'] * tokens['advantage']
    return gradient_share(logp, coefficients, mask.bool() & (tokens['ratio'] < low), list(policy.parameters()))


# 13_staying_alive/13_1_weights_in_the_loop, cell 9
OPTIMIZERS = {
    'SGD': lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    'Adam': lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, eps=1e-5, fused=True),
}
EVERY = 4                                               # steps between looks that cost more
HISTORY = ('step', 'episodes', 'pass_rate', 'submit_rate', 'turns', 'malformed', 'tokens', 'policy_tokens')


# 13_staying_alive/13_1_weights_in_the_loop, cell 9
def own_episodes(policy, tasks, tok, cfg, n=64):
    """What the present policy does in `n` episodes or a few more, from draws of its own: dict of own_*."""
    rng = torch.Generator().manual_seed(cfg.seed)
    stats = evaluate(policy, tasks, tok, -(-n // len(tasks)), rng, cfg)
    return {'own_pass_rate': stats['pass_rate'], 'own_truncated': 1 - stats['submit_rate'],
            'own_policy_tokens': stats['policy_tokens']}


# 13_staying_alive/13_1_weights_in_the_loop, cell 9
def look_away(step, version, trajs, batch, tokens):
    """The default of train_lagged's `look`: no dump."""


# 13_staying_alive/13_1_weights_in_the_loop, cell 10
def train_lagged(policy, tasks, tok, cfg, weighing='low 0.5', lag=16, optimizer='SGD', steps=40, look=look_away):
    """Train `policy` in place on episodes of itself `lag` steps ago; returns the history, a row a step.

    Each batch is scored again by the present policy before its updates; the ratio of the two gives the
    weights. Every EVERY steps a row also has gradient_below and the own_* figures. look(step, version, trajs,
    batch, tokens) sees what weigh_batch gave to each token; version: updates that the sampler had seen.
    """
    generator, history = torch.Generator().manual_seed(cfg.seed), []
    opt, past = OPTIMIZERS[optimizer](policy.parameters(), cfg.lr), deque(maxlen=lag + 1)
    for step in tqdm(range(steps), desc=f'RL, {weighing}'):
        past.append((step * cfg.epochs * cfg.minibatches, copy.deepcopy(policy)))
        version, behaviour = past[0]
        trajs = sample_step(behaviour, tasks, tok, cfg, generator)
        batch, advantages = group_batch(trajs, tok, cfg)
        tokens, metrics = weigh_batch(policy, batch, advantages, weighing, cfg)
        look(step, version, trajs, batch, tokens)
        if step % EVERY == 0:
            metrics |= {'gradient_below': gradient_below(policy, batch, tokens, cfg)}
            metrics |= own_episodes(policy, tasks, tok, cfg)
        update = rl_update(policy, opt, batch | {'logp': tokens['train_logp']}, advantages * tokens['weight'], cfg)
        row = {'step': step} | behavior_stats(trajs) | metrics | update
        history.append({name: row[name] for name in (*HISTORY, *metrics, *update)})
    return history


# 13_staying_alive/13_1_weights_in_the_loop, cell 11
LAGGED = {'weighing': 'low 0.5', 'lag': 16, 'optimizer': 'SGD', 'lr': 0.2, 'steps': 40, 'n_tasks': 4,
          'loss_agg': 'token_mean', 'wrong_submit': 0.0}


# 13_staying_alive/13_1_weights_in_the_loop, cell 11
def few_tasks(n):
    """The first train task of each demonstrated edit (n=4), or all twenty."""
    tasks = make_tasks('train')
    firsts = [next(task for task in tasks if task.edit == edit) for edit in DEMONSTRATED]
    choices = {len(firsts): firsts, len(tasks): tasks}
    if n not in choices:
        raise ValueError(f'n_tasks={n!r} is not one of {", ".join(map(str, choices))}')
    return choices[n]


# 13_staying_alive/13_1_weights_in_the_loop, cell 11
@cached
def train_weighed(settings, seed, base_seed, evaluation):
    """Train the RL base under LAGGED with `settings` in place: history, and heldout (256 own episodes).

    The final policy plays 256 episodes or a few more of the tasks that it was trained on.
    """
    wanted = LAGGED | settings
    tok, tasks = build_tokenizer(make_tasks('all')), few_tasks(wanted.pop('n_tasks'))
    cfg = RLConfig(prompts_per_step=4, group_size=16, seed=seed,
                   **{name: wanted.pop(name) for name in ('lr', 'loss_agg', 'wrong_submit')})
    policy = make_rl_base(tok, base_seed)
    history = train_lagged(policy, tasks, tok, cfg, **wanted)
    rng = torch.Generator().manual_seed(evaluation['seed'])
    trajs = sample_groups(policy, tasks, tok, cfg, rng, n=-(-256 // len(tasks)))
    return {'history': history, 'heldout': behavior_stats(trajs)}
