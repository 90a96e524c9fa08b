"""Job logs of each format. The first rows are the examples in the documentation of the published logs."""

import json

import numpy as np
import pytest

from esprof.analyzers.jobs.read import read_log
from esprof.core.errors import InputError

PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1506638472019_14199",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": [f"gpu{at}" for at in range(8)]}],
            },
            {
                "start_time": "2017-10-07 01:13:30",
                "end_time": "2017-10-09 06:53:12",
                "detail": [{"ip": "m412", "gpus": [f"gpu{at}" for at in range(8)]}],
            },
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {"status": "Killed", "vc": "a", "jobid": "b", "attempts": [], "submitted_time": "None", "user": "c"},
    {
        "status": "Failed",
        "vc": "a",
        "jobid": "d",
        "attempts": [
            {
                "start_time": "2017-10-07 02:00:00",
                "end_time": None,
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu0", "gpu1"]}],
            }
        ],
        "submitted_time": "2017-10-07 01:59:00",
        "user": "c",
    },
]
REDUCED = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-07 01:11:39,193256.0,8,1546048.0,ee9e8c
"""
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425514,uVMrF,vchbv,16,16,2,TIMEOUT,2020-06-09 18:41:27,2020-06-09 18:43:27,2020-06-09 18:45:36,129,120
"""
SEREN = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
"""
KALOS = """job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,\
end_time,fail_time,stop_time,duration,queue,gpu_time
dlctk696s0jbvitv,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,\
2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,10
openb-pod-0001,6000,12288,1,460,,LS,Failed,100,700,102
openb-pod-0017,88000,327680,8,1000,A100,BE,Pending,50,90,
"""
SPOT = """job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
437260,57,A100-SXM4-80GB,15,1,16,9589663,41060,Spot
"""
PAI_JOBS = """4b3f04,8cb3be,58540f,Terminated,4550879.0,4551416.0
5c4f04,9cb3be,58540f,Waiting,4550900.0,
"""
PAI_TASKS = """4b3f04,ps,1.0,Terminated,4550889.0,4551400.0,600.0,29.3,0.0,MISC
4b3f04,worker,2.0,Terminated,4550899.0,4551416.0,400.0,29.3,50.0,MISC
"""


def read(folder, text, name="log.csv"):
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return read_log(path)


def waits(log):
    return [None if np.isnan(wait) else wait for wait in (log.started_s - log.queued_s).tolist()]


def gpu_seconds(log):
    return np.nansum(log.gpus * log.run_s)


def test_philly_has_a_row_for_each_attempt(tmp_path):
    log = read(tmp_path, PHILLY)
    assert log.format == "Philly"
    assert log.job.tolist() == [0, 0, 1, 2]
    assert log.is_last.tolist() == [False, True, True, True]
    assert log.state.tolist() == ["completed", "completed", "cancelled", "failed"]
    assert log.gpus.tolist() == [8, 8, 0, 3]
    assert log.servers[[0, 1, 3]].tolist() == [1, 1, 2]
    assert waits(log) == [30, 7, None, 60]
    assert not log.lacks
    assert not log.notes


def test_the_same_job_of_philly_has_the_same_gpu_time_in_both_of_its_formats(tmp_path):
    assert gpu_seconds(read(tmp_path, PHILLY[:1])) == gpu_seconds(read(tmp_path, REDUCED)) == 1_546_048


def test_reduced_philly_lacks_most(tmp_path):
    assert read(tmp_path, REDUCED).lacks == {"state", "servers", "start", "attempts"}


def test_helios(tmp_path):
    log = read(tmp_path, HELIOS)
    assert log.format == "Helios"
    assert waits(log) == [0, 120]
    assert log.run_s.tolist() == [249, 129]
    assert log.state.tolist() == ["failed", "failed"]
    assert log.servers.tolist() == [1, 2]
    assert log.lacks == {"attempts"}


def test_acme(tmp_path):
    seren = read(tmp_path, SEREN)
    assert (seren.format, waits(seren), gpu_seconds(seren)) == ("Acme", [32], 936)
    # Its `duration` of 18 s counts the 10 s in the queue.
    kalos = read(tmp_path, KALOS)
    assert (waits(kalos), kalos.run_s.tolist(), kalos.servers.tolist()) == ([10], [8], [8])


def test_pai_2023_counts_parts_of_a_gpu(tmp_path):
    log = read(tmp_path, PODS)
    assert log.gpus.tolist() == [1, 0.46, 8]
    assert log.state.tolist() == ["running", "failed", "waiting"]
    assert waits(log) == [10, 2, None]
    assert log.lacks == {"servers", "attempts"}


def test_pai_2026_multiplies_workers(tmp_path):
    log = read(tmp_path, SPOT)
    assert (log.format, gpu_seconds(log)) == ("PAI 2026", 16 * 41060)


@pytest.mark.parametrize("is_headed", [False, True])
def test_pai_2020_joins_jobs_and_tasks(tmp_path, is_headed):
    jobs, tasks = PAI_JOBS, PAI_TASKS
    if is_headed:
        jobs = "job_name,inst_id,user,status,start_time,end_time\n" + jobs
        tasks = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n" + tasks
    (tmp_path / "pai_job_table.csv").write_text(jobs)
    (tmp_path / "pai_task_table.csv").write_text(tasks)
    log = read_log(tmp_path)
    assert log.format == "PAI 2020"
    assert log.gpus[0] == 1
    assert waits(log) == [10, None]
    assert log.run_s[0] == 4551416 - 4550889
    assert log.state.tolist() == ["completed", "waiting"]


def test_columns_that_are_missing_are_lacking(tmp_path):
    log = read(tmp_path, "job_id,vc,gpu_num,submit_time\n1,a,4,2020-06-09 18:41:27\n")
    assert log.lacks == {"state", "servers", "start", "attempts"}
    assert np.isnan(log.run_s).all()


def test_values_that_are_no_times_are_counted(tmp_path):
    log = read(tmp_path, HELIOS.replace("2020-06-09 18:43:27", "yesterday"))
    assert log.notes == ("values of start_time that are no times: 1",)
    assert waits(log) == [0, None]
    assert log.run_s.tolist() == [249, 129]  # by its duration


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no known job log"),
        ("a,b\n1,2\n", "is no known job log"),
        (HELIOS.splitlines()[0] + "\n", "lists no job"),
        (HELIOS + "1,2\n", "is not a table of jobs"),
        ("timestamp,num_gpus,gpu_time,cluster,duration\n", "lists no job"),
        ("job_name,gpu_request,worker_num,submit_time\n", "lists no job"),
        ("[]", "lists no job"),
        ("[{}]", "is not Philly's cluster_job_log"),
        ("[" * 100_000, "is not Philly's cluster_job_log"),
    ],
)
def test_what_is_no_job_log_is_an_error(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        read(tmp_path, text)


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="holds no pai_job_table"):
        read_log(tmp_path)
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    with pytest.raises(InputError, match="is no text"):
        read_log(tmp_path / "log.gz")
    (tmp_path / "pai_job_table.csv").write_text(PAI_JOBS)
    with pytest.raises(InputError, match=r"pai_task_table.csv: cannot be read"):
        read_log(tmp_path)


def test_dates_in_distant_years_are_read_and_deep_brackets_are_refused(tmp_path):
    log = read(tmp_path, HELIOS.replace("2020-06-09 18:43:27", "6020-06-09 18:43:27"))
    assert not log.notes
    assert np.nanmax(log.queued_s) > 1e11 or np.nanmax(log.started_s) > 1e11
    with pytest.raises(InputError, match="is not Philly's cluster_job_log"):
        read(tmp_path, "[" * 3_000)
