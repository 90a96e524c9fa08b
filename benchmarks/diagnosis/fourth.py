"""The fourth set: other jobs once more, with more of what Python code can cost, that no rule is to be made with."""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, SLOW_RANK, Fault, Job, script

JOBS = (
    Job(
        "poles",
        script("fourth/poles"),
        (
            Fault("episode_book", ("ESP402",), (35, 75), placed=True),
            Fault("old_selves", ("ESP402",), (4, 12), placed=True),
            Fault("diary", ("ESP402",), (15, 40), placed=True),
            # In thousands of things remembered. Collecting by hand is a line of Python as well as garbage collection.
            Fault("spring_clean", ("ESP403",), (15, 38), second_best=("ESP402", "ESP807"), placed=True),
            Fault("encore", ("ESP807",), (4, 10), second_best=("ESP804",), placed=True),
        ),
        ranks=1,
    ),
    Job(
        "reviews",
        script("fourth/reviews"),
        (
            Fault("wide_rows", ("ESP701",), (60, 78)),
            Fault("mentions", ("ESP402",), (25, 60), placed=True),
            # Collation in the training process is Python code on all ranks as well as input data.
            Fault("shingles", INPUT, (4, 10), second_best=("ESP402",), placed=True),
            # In ms; the worker waits, not the training process.
            Fault("far_shelf", INPUT, (1.45, 1.8)),
            Fault("picky", INPUT_OF_ONE, (13, 32), one_rank=True, placed=True),
        ),
    ),
    Job(
        "pricing",
        script("fourth/pricing"),
        (
            Fault("ledger", SLOW_RANK, (70, 170), one_rank=True, placed=True),
            Fault("curvature", SLOW_RANK, (12, 48), one_rank=True, placed=True),
            Fault("heartbeat", SLOW_RANK, (4, 10), one_rank=True, placed=True),
            Fault("weight_book", ("ESP402",), (9, 25), placed=True),
            Fault("seal", ("ESP402",), (35, 100), placed=True),
            Fault("calibration", ("ESP402",), (2, 6), placed=True),
            # One rank does work for all that the others wait for, each in its turn: a line of Python, too.
            Fault("rota", ("ESP205",), (25, 75), second_best=("ESP402",), placed=True),
            # In cores, which two others share.
            Fault("crowd", ("ESP404",), (0.5, 1.2)),
        ),
    ),
    Job(
        "contrast",
        script("fourth/contrast"),
        (
            Fault("keep", SAVE, (4, 7), second_best=("ESP806",), placed=True),
            # Its name says nothing, and so nothing tells that it saves.
            Fault("stow", (*SAVE, "ESP806"), (3, 5), placed=True),
            Fault("glance", ("ESP806",), (5, 9), placed=True),
            Fault("retraced", INPUT, (130, 400), placed=True),
        ),
    ),
)
