"""The first set: for those who write rules to look at."""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, SLOW_RANK, Fault, Hosts, Job, script

JOBS = (
    Job(
        "gpt",
        script("first/gpt"),
        (
            Fault("sleeps_often", SLOW_RANK, (12, 35), one_rank=True, placed=True),
            Fault("slow_backward", SLOW_RANK, (1, 1.9), one_rank=True, placed=True),
            Fault("more_work", SLOW_RANK, (1.4, 1.7), one_rank=True),
            Fault("uneven", ("ESP205",), (20, 30)),
            Fault("python_hook", ("ESP402",), (0.6, 1), placed=True),
            Fault("transient", (*SLOW_RANK, "ESP807"), (50, 100), one_rank=True, placed=True),
            Fault("occasional", ("ESP807",), (200, 400), second_best=("ESP804",), placed=True),
            Fault("hog", ("ESP404",), (1, 2)),
        ),
    ),
    Job(
        "saves",
        script("first/saves"),
        (
            Fault("torch_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("bare_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("safetensors_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("numpy_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("evaluation", ("ESP806",), (6, 9), placed=True),
        ),
    ),
    Job(
        "single",
        script("first/single"),
        (
            Fault("python_hook", ("ESP402",), (0.4, 1.0), placed=True),
            Fault("backward_hook", ("ESP402",), (10, 25), placed=True),
            Fault("fsync_log", ("ESP402",), (2, 4), placed=True),
            # Collecting by hand is a line of Python as well as garbage collection.
            Fault("gc_collect", ("ESP403",), (0.05, 0.2), second_best=("ESP402",), placed=True),
            # What is kept of each sample makes full collections long, and brings them on.
            Fault("gc_history", ("ESP403",), (300, 600), second_best=("ESP402", "ESP807")),
        ),
        ranks=1,
    ),
    Job(
        "hosts",
        script("first/hosts"),
        (
            Fault("slow_host", ("ESP202", "ESP203", "ESP404"), (0.5, 0.65), one_rank=True, quota=True),
            Fault("small_quotas", ("ESP404",), (0.5, 0.65), quota=True),
            Fault("slow_link", ("ESP301", "ESP304"), (0.25, 0.4), link=True),
            Fault("tiny_buckets", ("ESP302",), (1, 8), second_best=("ESP301",)),
            Fault("one_bucket", ("ESP303",), (50, 200), second_best=("ESP301",)),
            # What all ranks gather each step is exposed communication, and the line that gathers is Python code.
            Fault("metrics", ("ESP301", "ESP303"), (6, 10), second_best=("ESP402",), placed=True),
        ),
        hosts=Hosts((0.75, 0.75), ("300mbit", "300mbit")),
        # Its links and quotas are a part of any step.
        true_without_fault=("ESP301", "ESP303", "ESP404"),
    ),
    Job(
        "images",
        script("first/images"),
        (
            Fault("slow_files", INPUT_OF_ONE, (1.5, 4), one_rank=True, placed=True),
            Fault("slow_decode", INPUT, (5, 10), placed=True),
            # Collation in the training process is Python code on all ranks as well as input data.
            Fault("heavy_collate", INPUT, (0.6, 1), second_best=("ESP402",), placed=True),
            # The loader makes every eighth step slow: input data that recurs.
            Fault("burst", (*INPUT, "ESP806"), (1, 2), placed=True),
            Fault("spawn_epochs", ("ESP807", *INPUT), (1, 1)),
        ),
        # Its samples are made in the training process, fault or not.
        true_without_fault=INPUT,
    ),
    Job(
        "fsdp",
        script("first/fsdp"),
        (
            Fault("much_more_work", SLOW_RANK, (18, 22), one_rank=True),
            Fault("dcp_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),
        ),
    ),
    Job(
        "accel",
        script("first/accel"),
        (Fault("slow_python", SLOW_RANK, (12, 25), one_rank=True, placed=True),),
        needs=("accelerate",),
    ),
    Job(
        "lit",
        script("first/lit"),
        (Fault("batch_end", ("ESP402",), (12, 16), placed=True),),
        starts_itself=True,
        needs=("lightning",),
    ),
    Job(
        "trainer",
        script("first/trainer"),
        (Fault("padding", ("ESP701",), (64, 96)), Fault("callback", ("ESP402",), (0.8, 1.5), placed=True)),
        needs=("transformers", "accelerate"),
    ),
)
