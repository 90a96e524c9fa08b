"""`esprof jobs` on a log of 20 days."""

import json

import pytest
from click.testing import CliRunner

from esprof.core.errors import UsageError
from esprof.reports.commands import jobs

HEAD = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"


@pytest.fixture
def log(tmp_path):
    lines = [HEAD]
    for day in range(1, 21):
        for gpus, minutes in ((1, 0), (8, 30)):
            for second in range(3):
                at = f"2020-06-{day:02d}"
                times = f"{at} 08:00:0{second},{at} 08:{minutes:02d}:0{second},{at} 09:{minutes:02d}:0{second}"
                lines.append(f"{len(lines)},u,vc,{gpus},1,1,COMPLETED,{times},3600,0")
    path = tmp_path / "cluster_log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def asked(*arguments):
    return CliRunner().invoke(jobs.command, [str(argument) for argument in arguments], catch_exceptions=False).stdout


def test_text(log):
    text = asked(log, "--size", "1=12", "--size", "8=2")
    assert text.startswith("Helios: 120 jobs with GPUs in 19.0 days, 540.0 GPU hours")
    assert "8 GPUs complete soonest in 100 % of resampled logs" in text
    assert "the log records one attempt of each job" in text


def test_json(log, tmp_path):
    asked(log, "--json", "-o", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert next(iter(found.items())) == ("schema", "esprof.jobs/1")
    assert [one["mean_s"] for one in found["queueing"]] == [0, 1800]
    assert found["advice"] is None
    assert set(found["declined"]) == {"retries"}


@pytest.mark.parametrize("size", ["8", "0=3", "8=0", "8=nan", "8=-1", "8=inf", "x=1", "1.5=2"])
def test_a_size_that_is_none_is_a_usage_error(log, size):
    with pytest.raises(UsageError, match="is not GPUS=HOURS"):
        asked(log, "--size", "1=12", "--size", size)


def test_a_single_size_is_a_usage_error(log):
    with pytest.raises(UsageError, match="at least two"):
        asked(log, "--size", "1=12", "--size", "1=13")
