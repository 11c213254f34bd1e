# Made by tools/export.py from notebooks/04_environment/04_2_rewards.py. Do not edit: change it there, then `make export`.
# Body: 6c2abf9bca58b6ac
"""4.2 Say what is wanted in one function."""

# 04_environment/04_2_rewards, cell 1
REWARD_KINDS = ('hidden', 'visible')


# 04_environment/04_2_rewards, cell 2
def make_reward(kind='hidden', step_penalty=0.0, wrong_submit=0.0, invalid_penalty=0.0):
    """The reward of a call as a function of (tool, passes); `submit` alone asks `passes(kind)`, the verdict.

    Costs are positive numbers, `wrong_submit` is the (negative) reward itself; all else is a ValueError.
    """
    if kind not in REWARD_KINDS:
        raise ValueError(f'reward={kind!r} is not known; choose one of {", ".join(REWARD_KINDS)}')
    for name, value in (('step_penalty', step_penalty), ('invalid_penalty', invalid_penalty)):
        if not 0 <= value < float('inf'):
            raise ValueError(f'{name}={value} must be a finite number >= 0')
    if not float('-inf') < wrong_submit <= 0:
        raise ValueError(f'wrong_submit={wrong_submit} must be a finite number <= 0: it is the reward itself')

    def reward(tool, passes):
        total = 0.0 - step_penalty
        if tool == 'invalid':
            total -= invalid_penalty
        if tool == 'submit':
            total += 1.0 if passes(kind) else wrong_submit
        return total

    return reward
