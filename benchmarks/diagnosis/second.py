"""The second set: other jobs, written in other ways, that no rule is to be made with."""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, SLOW_RANK, Fault, Hosts, Job, script

JOBS = (
    Job(
        "engine",
        script("second/engine"),
        (
            Fault("lock_wait", SLOW_RANK, (12, 35), one_rank=True, placed=True),
            Fault("custom_function", SLOW_RANK, (1, 3), one_rank=True, placed=True),
            Fault("long_sequences", SLOW_RANK, (1.4, 1.7), one_rank=True),
            Fault("loops", SLOW_RANK, (4, 7), one_rank=True, placed=True),
            Fault("buckets_of_length", ("ESP205",), (0.4, 0.6)),
            # One rank does work for all that the others wait for, each in its turn: a line of Python, too.
            Fault("turn", ("ESP205",), (4, 8), second_best=("ESP402",), placed=True),
            Fault("pre_hook", ("ESP402",), (2, 5), placed=True),
            Fault("early_stretch", (*SLOW_RANK, "ESP807"), (40, 80), one_rank=True, placed=True),
            Fault("rare_stall", ("ESP807",), (200, 400), second_best=("ESP804",), placed=True),
            Fault("neighbour", ("ESP404",), (1, 2)),
        ),
    ),
    Job(
        "snapshots",
        script("second/snapshots"),
        (
            Fault("renamed_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("safetensors_model", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            # A function of the job's own: that it writes is told by nothing but its name.
            Fault("pickle_snapshot", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("all_ranks_dcp", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("held_out", ("ESP806",), (6, 9), placed=True),
        ),
    ),
    Job(
        "solo",
        script("second/solo"),
        (
            Fault("log_hook", ("ESP402",), (1, 3), placed=True),
            Fault("tensor_hook", ("ESP402",), (6, 15), placed=True),
            Fault("commits", ("ESP402",), (4, 12), placed=True),
            Fault("tidy", ("ESP403",), (0.02, 0.1), second_best=("ESP402",), placed=True),
            Fault("leak", ("ESP403",), (6, 12), second_best=("ESP402", "ESP807")),
        ),
        ranks=1,
    ),
    Job(
        "mesh",
        script("second/mesh"),
        (
            Fault("slow_host", ("ESP202", "ESP203", "ESP404"), (0.5, 0.65), one_rank=True, quota=True),
            Fault("small_quotas", ("ESP404",), (0.5, 0.65), quota=True),
            # The link of one host: all ranks of the ring wait for it.
            Fault("slow_link", ("ESP301", "ESP304"), (0.3, 0.5), one_rank=True, link=True),
            Fault("crumbs", ("ESP302",), (1, 4), second_best=("ESP301",)),
            Fault("by_hand", ("ESP303",), (1, 1), second_best=("ESP301",)),
            # Objects are pickled on the way: Python code as well as a transfer.
            Fault("gather_objects", ("ESP301", "ESP303"), (3, 8), second_best=("ESP402",), placed=True),
        ),
        hosts=Hosts((0.5, 0.5, 0.5), ("100mbit", "100mbit", "100mbit")),
        # Its links and quotas are a part of any step.
        true_without_fault=("ESP301", "ESP303", "ESP404"),
    ),
    Job(
        "archive",
        script("second/archive"),
        (
            Fault("unzip_again", INPUT_OF_ONE, (4, 8), one_rank=True, placed=True),
            Fault("pil_filters", INPUT, (90, 160), placed=True),
            Fault("python_collate", INPUT, (1, 1), second_best=("ESP402",), placed=True),
            Fault("shards", (*INPUT, "ESP806"), (4, 6), placed=True),
            Fault("new_workers", ("ESP807", *INPUT), (1, 1)),
        ),
        # Its samples are made in the training process, fault or not.
        true_without_fault=INPUT,
    ),
    Job(
        "vit",
        script("second/vit"),
        (Fault("sharded_save", SAVE, (5, 8), second_best=("ESP806",), placed=True),),
    ),
    Job(
        "metrics",
        script("second/metrics"),
        (Fault("rank_correlation", SLOW_RANK, (2, 3), one_rank=True, placed=True),),
        needs=("accelerate",),
    ),
    Job(
        "causal",
        script("second/causal"),
        (Fault("fixed_width", ("ESP701",), (64, 96)), Fault("loss_log", ("ESP402",), (4, 10), placed=True)),
        ranks=1,
        needs=("transformers", "accelerate"),
    ),
    Job(
        "fabric",
        script("second/fabric"),
        (Fault("weights_watch", ("ESP402",), (0.3, 0.8), placed=True),),
        ranks=1,
        needs=("lightning",),
    ),
)
