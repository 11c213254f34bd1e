"""Dumps: readable while written, whole or absent after a crash, and refused by name when damaged."""

import os
import subprocess
import sys
import textwrap

import pandas as pd
import pytest
import torch

from agentrl.base import make_rl_base
from agentrl.dumps import (
    DUMP_COLUMNS,
    TOKEN_VALUES,
    dump_path,
    dumping,
    read_dump,
    read_dumps,
    token_table,
    write_dump,
)
from agentrl.episodes import OWNER
from agentrl.lagged import few_tasks, train_lagged
from agentrl.tasks import make_tasks
from agentrl.tokenizer import build_tokenizer
from agentrl.training import RLConfig

TOK = build_tokenizer(make_tasks("all"))
CFG = RLConfig(prompts_per_step=4, group_size=2, lr=0.4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder of two dumped steps, and what `look` saw."""
    folder, seen = tmp_path_factory.mktemp("run"), []
    write = dumping(folder)

    def look(*args):
        seen.append(args)
        write(*args)

    train_lagged(make_rl_base(TOK), few_tasks(4), TOK, CFG, lag=1, steps=2, look=look)
    return folder, seen


def small(step, rows=3):
    """A table that is small enough to write by hand."""
    return pd.DataFrame({name: [step if name == "step" else 0.5] * rows for name in DUMP_COLUMNS})


def test_a_row_for_each_token_of_each_episode(run):
    folder, seen = run
    table, writing = read_dumps(folder)
    assert writing == [] and list(table) == list(DUMP_COLUMNS)
    assert len(table) == sum(len(traj.ids) for _, _, trajs, _, _ in seen for traj in trajs)
    names = {code: name for name, code in OWNER.items()}
    for step, version, trajs, _, tokens in seen:
        assert version == 0  # both were sampled by the policy at the start
        for episode, traj in enumerate(trajs):
            rows = table[(table["step"] == step) & (table["episode"] == episode)].reset_index(drop=True)
            assert rows["token"].tolist() == [TOK.itos[i] for i in traj.ids.tolist()]
            assert rows["owner"].tolist() == [names[code] for code in traj.owner.tolist()]
            assert rows["turn"].tolist() == traj.turn.tolist() and (rows["version"] == version).all()
            assert rows["mask"].tolist() == (rows["owner"] == "policy").tolist()
            assert (rows["truncated"] == (traj.info["stop"] != "submit")).all() and (
                rows["reward"] == traj.reward
            ).all()
            for t in range(1, len(rows)):
                for name in TOKEN_VALUES:
                    value = rows[name][t]
                    assert value == tokens[name][episode, t - 1] if rows["mask"][t] else value != value
    policy = table[table["mask"]]
    assert (
        policy["ratio"].map(float) - (policy["train_logp"] - policy["rollout_logp"]).map(torch_exp)
    ).abs().max() < 1e-9


def torch_exp(x):
    return torch.tensor(x, dtype=torch.float64).exp().item()


def test_a_step_comes_back_as_it_was_written(tmp_path):
    path = write_dump(tmp_path / "new", small(3))
    assert path.name == "step_00003.parquet" and os.listdir(path.parent) == [path.name]
    pd.testing.assert_frame_equal(read_dump(path), small(3))
    write_dump(tmp_path / "new", small(3, rows=5))
    assert len(read_dump(path)) == 5


def test_readable_while_it_is_written(tmp_path, monkeypatch):
    """The reader is called from inside the writer, when half of the bytes are there."""
    from agentrl import dumps

    write_dump(tmp_path, small(1))
    seen, real = [], dumps.pq.write_table

    def slow(table, file):
        file.write(b"PAR1 half of it")
        file.flush()
        seen.append(read_dumps(tmp_path))
        file.seek(0)
        real(table, file)

    monkeypatch.setattr(dumps.pq, "write_table", slow)
    write_dump(tmp_path, small(2))
    ((table, writing),) = seen
    assert writing == [2] and set(table["step"]) == {1}
    table, writing = read_dumps(tmp_path)
    assert writing == [] and set(table["step"]) == {1, 2}


def test_a_step_written_again_is_read_from_its_old_file_meanwhile(tmp_path):
    write_dump(tmp_path, small(1))
    dump_path(tmp_path, 1).with_suffix(".parquet.part").write_bytes(b"half")
    table, writing = read_dumps(tmp_path)
    assert len(table) == 3 and writing == [1]


def test_a_killed_writer_leaves_no_half_file(tmp_path):
    code = """
        import os, sys
        import pandas as pd
        from agentrl import dumps

        def die(table, file):
            file.write(b"PAR1 half of it")
            file.flush()
            os._exit(9)

        def small(step):
            return pd.DataFrame({name: [step if name == "step" else 0.5] for name in dumps.DUMP_COLUMNS})

        dumps.write_dump(sys.argv[1], small(1))
        dumps.pq.write_table = die
        dumps.write_dump(sys.argv[1], small(2))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], timeout=120)
    assert done.returncode == 9
    assert sorted(os.listdir(tmp_path)) == ["step_00001.parquet", "step_00002.parquet.part"]
    table, writing = read_dumps(tmp_path)
    assert set(table["step"]) == {1} and writing == [2]
    write_dump(tmp_path, small(2))  # the run goes on: the leftover is overwritten
    assert read_dumps(tmp_path)[1] == [] and len(os.listdir(tmp_path)) == 2


def test_nothing_there_yet(tmp_path):
    table, writing = read_dumps(tmp_path)
    assert len(table) == 0 and writing == [] and list(table) == list(DUMP_COLUMNS)
    (tmp_path / "notes.txt").write_text("not ours")
    assert len(read_dumps(tmp_path)[0]) == 0
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        read_dumps(tmp_path / "nowhere")


@pytest.mark.parametrize("cut", [0, 3, 100, -20])
def test_a_damaged_dump_is_named(tmp_path, cut):
    path = write_dump(tmp_path, small(4))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"step_00004\.parquet is no whole parquet file.*delete it"):
        read_dumps(tmp_path)


def test_bytes_changed_inside_are_not_believed_silently(tmp_path):
    path = write_dump(tmp_path, small(4))
    path.write_bytes(b"x" * len(path.read_bytes()))
    with pytest.raises(ValueError, match="no whole parquet file"):
        read_dump(path)


def test_a_dump_of_another_kind_is_named(tmp_path):
    small(4).drop(columns="ratio").to_parquet(dump_path(tmp_path, 4))
    with pytest.raises(ValueError, match="step_00004.parquet lacks the columns ratio"):
        read_dumps(tmp_path)
    small(5).to_parquet(dump_path(tmp_path, 4))
    with pytest.raises(ValueError, match=r"step_00004.parquet holds steps \[5\.?0?\].*name must say its step"):
        read_dumps(tmp_path)
    dump_path(tmp_path, 4).unlink()
    two = pd.concat([small(1), small(2)])
    for table in (two, small(1).drop(columns="owner"), small(1).drop(columns="step")):
        with pytest.raises(ValueError, match="table of one step with the columns"):
            write_dump(tmp_path, table)
    assert os.listdir(tmp_path) == []


def test_the_order_of_steps_is_that_of_training(tmp_path):
    for step in (10, 2, 100000):
        write_dump(tmp_path, small(step, rows=1))
    assert read_dumps(tmp_path)[0]["step"].tolist() == [2, 10, 100000]


def test_values_survive_exactly(run):
    folder, seen = run
    step, version, trajs, _, tokens = seen[1]
    pd.testing.assert_frame_equal(
        read_dump(dump_path(folder, step)), token_table(step, version, trajs, tokens), check_exact=True
    )
