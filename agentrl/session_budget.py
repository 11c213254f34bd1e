# Made by tools/export.py from notebooks/13_staying_alive/13_5_a_session_budget.py. Do not edit: change it there, then `make export`.
# Body: a7ca0256ac510a97
"""13.5 Show the agent loop its session budget."""

from agentrl.environment import check_count
from agentrl.episodes import OWNER


# 13_staying_alive/13_5_a_session_budget, cell 2
def session_budget_check(budget, reserve=0):
    """`enough(turn)` for a loop that stops when `reserve` more tokens do not fit into `budget`."""
    check_count('budget', budget), check_count('reserve', reserve, least=0)
    return lambda turn: turn.total + reserve > budget


# 13_staying_alive/13_5_a_session_budget, cell 4
def turns_by_usage(turns, budget, reserve):
    """The turns (written, total) that a loop plays which stops when `reserve` more do not fit."""
    stop = next((n for n, (_, total) in enumerate(turns, 1) if total + reserve > budget), len(turns))
    return turns[:stop]


# 13_staying_alive/13_5_a_session_budget, cell 4
def turns_by_count(turns, budget, limit):
    """The turns that a loop plays which counts what it sends, and leaves out a call that might not fit."""
    sent = [total - written for written, total in turns]
    return turns[:next((n for n, length in enumerate(sent) if length + limit > budget), len(turns))]


# 13_staying_alive/13_5_a_session_budget, cell 4
def session_cost(turns, played, budget):
    """Tokens decoded and thrown away if `played` are the turns that are played; is the whole episode kept?"""
    written = sum(n for n, _ in played)
    kept = sum(max(0, min(n, budget - (total - n))) for n, total in played)
    return {'written': written, 'thrown': written - kept, 'whole': played == turns and turns[-1][1] <= budget}


# 13_staying_alive/13_5_a_session_budget, cell 8
def trajectory_turns(traj):
    """(written, total) of each turn of a trajectory: tokens of its call, and of the row to the call's end."""
    places = (traj.owner == OWNER['policy']).nonzero()[:, 0]                      # [N]
    written = traj.turn[places].bincount()                                        # [turns]
    totals = places[written.cumsum(0) - 1] + 1
    return list(zip(written.tolist(), totals.tolist(), strict=True))
