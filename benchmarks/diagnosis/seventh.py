"""The seventh set: forty faults in eight jobs, written before any rule was asked about them.

A finding is accepted where its title says what was planted.
"""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, SLOW_RANK, Fault, Hosts, Job, script

PYTHON = ("ESP402",)
SMALL_OPERATIONS = ("ESP408",)
NO_CPU = ("ESP404",)
WAITS = ("ESP301", "ESP304")
"""What is said of communication where one rank is late, or much is sent."""

JOBS = (
    Job(
        "demand",
        script("seventh/demand/train"),
        (
            Fault("rolling", INPUT, (8, 16), NO_CPU, module="data"),
            Fault("outliers", (*SLOW_RANK, *PYTHON), (20, 40), WAITS, one_rank=True, placed=True),
            Fault("again", ("ESP706",), (1, 1), PYTHON, placed=True),
            Fault("hourly_metrics", ("ESP302",), (60, 140), WAITS, placed=True),
            # In MB.
            Fault("keep_forecasts", SAVE, (30, 80), (*SLOW_RANK, "ESP804", "ESP807"), placed=True),
        ),
    ),
    Job(
        "scans",
        script("seventh/scans/train"),
        (
            Fault("quota", (*SLOW_RANK, *NO_CPU), (0.55, 0.75), WAITS, one_rank=True, quota=True),
            Fault("links", WAITS, (0.1, 0.25), ("ESP302", "ESP303"), link=True),
            Fault("link_of_one", WAITS, (0.1, 0.25), ("ESP302", "ESP303", *SLOW_RANK), one_rank=True, link=True),
            Fault("by_hand", ("ESP302", "ESP303"), (1, 1), WAITS, placed=True),
            Fault("warp", INPUT, (4, 6), NO_CPU, module="data"),
        ),
        hosts=Hosts((0.8, 0.8), ("400mbit", "400mbit")),
        # Its links and quotas are a part of any step: the kernel throttles each rank for 10 to 11 ms of 74.
        true_without_fault=("ESP301", "ESP404"),
    ),
    Job(
        "bank",
        script("seventh/bank/train"),
        (
            Fault("no_workers", INPUT, (1, 1), PYTHON),
            # Share of the columns.
            Fault("columns", (*SMALL_OPERATIONS, *PYTHON), (0.8, 1), (), placed=True, module="model"),
            Fault("lasso_loop", (*SMALL_OPERATIONS, *PYTHON), (56, 60), (), placed=True),
            Fault("histograms", PYTHON, (2, 4), ("ESP406",), placed=True),
            # Batches of the last scores.
            Fault("auc", PYTHON, (50, 120), SMALL_OPERATIONS, placed=True),
        ),
        ranks=1,
        needs=("tensorboard",),
    ),
    Job(
        "songs",
        script("seventh/songs/train"),
        (
            # ms a clip.
            Fault("far_files", INPUT_OF_ONE, (2.5, 4), SLOW_RANK, one_rank=True, module="data"),
            Fault("doubles", ("ESP708",), (1, 1), PYTHON, placed=True, module="model"),
            Fault("row_by_row", (*SMALL_OPERATIONS, *PYTHON), (1, 1), (), placed=True),
            Fault("other_job", (*SLOW_RANK, *NO_CPU), (0.3, 0.6), WAITS, one_rank=True),
            # Vectors of the bank.
            Fault("bank_of_lists", PYTHON, (300, 800), (*WAITS, "ESP302"), placed=True),
        ),
    ),
    Job(
        "assist",
        script("seventh/assist/train"),
        (
            Fault("padding", ("ESP701",), (120, 160), (), module="data"),
            Fault("no_freeze", ("ESP707",), (1, 1), WAITS),
            # Layers.
            Fault("checkpoints", ("ESP504",), (3, 4), PYTHON, placed=True, module="model"),
            Fault("one_by_one", ("ESP302", *SMALL_OPERATIONS, *PYTHON), (1, 1), WAITS, placed=True),
            # Every so many steps.
            Fault("whole_model", SAVE, (2, 4), (*PYTHON, "ESP804", "ESP807"), placed=True),
        ),
    ),
    Job(
        "verses",
        script("seventh/verses/train"),
        (
            Fault("heavy_stage", ("ESP207",), (1, 1), SLOW_RANK, one_rank=True),
            Fault("statistics", (*SLOW_RANK, *PYTHON), (16, 30), (*SMALL_OPERATIONS, "ESP207"), True, placed=True),
            Fault("collect", ("ESP403",), (4, 6), ("ESP804", "ESP807"), placed=True),
            # Verses a step.
            Fault("tokenise", PYTHON, (10, 16), INPUT, placed=True),
            Fault("crumbs", SMALL_OPERATIONS, (1, 1), (*PYTHON, *WAITS, "ESP302")),
        ),
        starts_itself=True,
    ),
    Job(
        "lines",
        script("seventh/lines/train"),
        (
            Fault("letter_by_letter", SMALL_OPERATIONS, (1, 1), PYTHON, placed=True, module="model"),
            Fault("own_order", ("ESP205",), (1, 1), (*SLOW_RANK, *WAITS)),
            # Lines a step.
            Fault("edits", PYTHON, (12, 24), (), placed=True),
            # Share of the pictures.
            Fault("pixels", INPUT, (0.7, 1), NO_CPU, module="data"),
            # MB a bucket.
            Fault("small_buckets", ("ESP302",), (0.001, 0.01), (*WAITS, "ESP303")),
        ),
        needs=("torchdata",),
    ),
    Job(
        "leaves",
        script("seventh/leaves/train"),
        (
            Fault("taught_back", ("ESP707",), (1, 1), PYTHON, placed=True),
            Fault("stretch", PYTHON, (24, 36), (), placed=True),
            Fault("threads", NO_CPU, (2, 3), ()),
            # Lines a step.
            Fault("protocol", (*SLOW_RANK, *PYTHON), (6, 20), (*WAITS, "ESP406"), one_rank=True, placed=True),
            # Every so many steps.
            Fault("validate", ("ESP806", "ESP807", *PYTHON), (3, 5), ("ESP804",), placed=True),
        ),
    ),
)
