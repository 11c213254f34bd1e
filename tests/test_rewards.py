import pytest

from agentrl.rewards import make_reward


def test_terms_add_up():
    reward = make_reward("hidden", step_penalty=0.05, wrong_submit=-1.0, invalid_penalty=0.2)
    assert reward("read", lambda kind: True) == -0.05
    assert reward("invalid", lambda kind: True) == -0.25
    assert reward("submit", lambda kind: True) == pytest.approx(0.95)
    assert reward("submit", lambda kind: False) == pytest.approx(-1.05)


def test_the_named_verdict_is_asked_and_only_at_submit():
    asked = []
    for kind in ("hidden", "visible"):
        reward = make_reward(kind)
        for tool in ("read", "test", "edit", "invalid", "submit"):
            reward(tool, lambda k: asked.append(k) or True)
    assert asked == ["hidden", "visible"]


def test_nothing_costs_anything_unless_said_otherwise():
    reward = make_reward()
    for tool in ("read", "test", "edit", "invalid"):
        assert reward(tool, lambda kind: True) == 0
    assert reward("submit", lambda kind: kind == "hidden") == 1 and reward("submit", lambda kind: False) == 0


WRONG = [
    ("step_penalty", -0.1),
    ("step_penalty", float("inf")),
    ("wrong_submit", 0.5),
    ("wrong_submit", -float("inf")),
    ("invalid_penalty", float("nan")),
]


@pytest.mark.parametrize("field, value", WRONG)
def test_wrong_values(field, value):
    with pytest.raises(ValueError, match=f"^{field}={value} must be a finite number"):
        make_reward(**{field: value})


def test_unknown_kind():
    with pytest.raises(ValueError, match="'secret'.*hidden, visible"):
        make_reward("secret")
