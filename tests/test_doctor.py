"""The command reads dumps, never raises, runs no pickled code, and answers by its exit code."""

import json
import os
import subprocess
import sys

import pytest
import torch

from agentrl.doctor import from_samples, main

SAMPLE = {"tokens": [5, 6, 7, 8, 9, 4], "response_length": 4, "loss_mask": [1, 0, 0, 1], "reward": 1.0}
SAMPLE |= {"rollout_log_probs": [-0.5, 0.0, 0.0, -0.7], "group_index": 0}
HEALTHY = {"action_mask": [[1, 0, 1]] * 2, "logp": [[-1.0, 0, -1.0]] * 2, "reward": [1.0, 0.0], "group": [0, 0]}
HEALTHY |= {"advantages": [0.5, -0.5]}


def run(tmp_path, thing, *options, name="dump.pt"):
    torch.save(thing, tmp_path / name)
    return main([str(tmp_path / name), *options])


def test_exit_codes(tmp_path, capsys):
    assert run(tmp_path, HEALTHY) == 0
    assert run(tmp_path, HEALTHY | {"advantages": [float("nan"), 0.5]}) == 1
    assert run(tmp_path, {"samples": [SAMPLE, SAMPLE]}) == 2
    assert main([str(tmp_path / "missing.pt")]) == 2
    assert "Traceback" not in capsys.readouterr().out


def test_json_is_a_line_a_dump(tmp_path, capsys):
    assert run(tmp_path, HEALTHY | {"advantages": [float("nan"), 0.5]}, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "sick" and report["lines"][0]["check"] == "advantages"


def test_samples_are_laid_out_in_columns():
    fields = from_samples([SAMPLE, SAMPLE | {"tokens": [5, 7, 8, 9, 4]}])
    assert fields["action_mask"].int().tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0]]
    assert fields["attention_mask"].int().tolist()[1] == [1, 1, 1, 1, 1, 0] and fields["reward"] == [1.0, 1.0]


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


@pytest.mark.parametrize("thing", [Evil(), {"action_mask": Evil()}, {1: 2}, [1], None, {"samples": [{"tokens": 3}]}])
def test_strange_dumps_are_code_2_and_run_nothing(tmp_path, thing, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, thing) == 2 and not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 50, b"PK\x03\x04", b"[[[", b'{"action_mask": 1}'])
@pytest.mark.parametrize("ending", [".pt", ".json", ".xyz"])
def test_any_bytes_are_code_2(tmp_path, content, ending, capsys):
    (tmp_path / f"dump{ending}").write_bytes(content)
    assert main([str(tmp_path / f"dump{ending}")]) == 2


def test_it_imports_torch_and_no_gym():
    heavy = ["pandas", "gymnasium", "joblib", "pyarrow"]
    code = "import agentrl.doctor, sys; repr(agentrl.doctor.diagnose({'action_mask': [[1, 0]]})); "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
