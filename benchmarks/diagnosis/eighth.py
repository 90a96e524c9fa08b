"""The eighth set: forty faults in eight jobs, written before any rule was asked about them.

A finding is accepted where its title says what was planted.
"""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SLOW_RANK, Fault, Hosts, Job, script

ONCE = (1.0, 1.0)
"""A fault that is there or not."""

SLOW_HOST = ("ESP401", "ESP406")
"""What says only that the Python process was the bottleneck."""

JOBS = (
    Job(
        "flow",
        script("eighth/flow/train"),
        (
            # Pixels a side.
            Fault("soft_zoom", INPUT, (250, 400), ("ESP404",), module="data"),
            # Blocks.
            Fault("double_blocks", ("ESP708",), ONCE),
            Fault("own_reduce", ("ESP302", "ESP303"), ONCE, ("ESP301",), placed=True),
            # Copies.
            Fault("keep_best", ("ESP402",), (3, 6), SLOW_HOST, placed=True),
            # Steps from noise to a picture.
            Fault("preview", (*SLOW_RANK, "ESP402"), (3, 6), ("ESP301", "ESP806"), one_rank=True, placed=True),
        ),
    ),
    Job(
        "speech",
        script("eighth/speech/train"),
        (
            # Utterances.
            Fault("denoise", ("ESP402",), (2, 5), SLOW_HOST, placed=True),
            # Utterances.
            Fault("alignments", ("ESP402",), (4, 10), SLOW_HOST, placed=True),
            # Seconds.
            Fault("fixed_length", ("ESP701",), (4, 5), ("ESP704",), module="data"),
            # Times that the lexicon is read.
            Fault("fresh_workers", INPUT, (3, 6), ("ESP807",)),
            # Share of the corpus.
            Fault("sorted_shards", ("ESP202", "ESP208"), (0.1, 0.25), ("ESP201", "ESP203", "ESP301"), one_rank=True),
        ),
    ),
    Job(
        "shop",
        script("eighth/shop/train"),
        (
            # Items that were shown.
            Fault("json_rows", (*INPUT, "ESP402"), (120, 250), SLOW_HOST, placed=True, module="data"),
            # Items a user.
            Fault("fair_negatives", ("ESP402",), (20, 40), SLOW_HOST, placed=True),
            # Users.
            Fault("recall", ("ESP402",), (200, 500), ("ESP806",), placed=True),
            Fault("twice", ("ESP706",), ONCE, ("ESP402",), placed=True),
            # Thousands of users.
            Fault("collect", ("ESP402", "ESP403"), (40, 100), SLOW_HOST, placed=True),
        ),
        ranks=1,
    ),
    Job(
        "drone",
        script("eighth/drone/train"),
        (
            # Poles.
            Fault(
                "crowded_field",
                (*SLOW_RANK, "ESP402"),
                (80, 160),
                ("ESP301", *SLOW_HOST),
                one_rank=True,
                module="world",
            ),
            # Instants.
            Fault("replay_copies", ("ESP402",), (1, 3), SLOW_HOST, placed=True, module="world"),
            Fault("one_by_one", ("ESP402", "ESP408"), ONCE, SLOW_HOST, placed=True),
            # Instants ahead.
            Fault("sums_by_element", ("ESP402", "ESP408"), (2, 4), SLOW_HOST, placed=True),
            # Notes.
            Fault("share_notes", ("ESP301", "ESP402"), (1500, 4000), ("ESP302", *SLOW_HOST), placed=True),
        ),
        # Flying is Python, and most of what these steps do.
        true_without_fault=("ESP401", "ESP402"),
    ),
    Job(
        "lora",
        script("eighth/lora/train"),
        (
            # Blocks.
            Fault("recompute", ("ESP504",), (4, 6), placed=True),
            # Rounds.
            Fault("merges", ("ESP402",), (4, 8), SLOW_HOST, placed=True),
            Fault("sharded_finely", ("ESP302",), ONCE, ("ESP301",)),
            Fault("base_learns", ("ESP707",), ONCE, ("ESP301",)),
            # Adapters' matrices.
            Fault("norms_by_name", ("ESP302",), (24, 48), ("ESP301", "ESP402"), placed=True),
        ),
    ),
    Job(
        "stages",
        script("eighth/stages/train"),
        (
            # Layers.
            Fault("crooked_cut", ("ESP207",), (1, 3), SLOW_RANK, one_rank=True),
            # Rows of twelve that are read.
            Fault("csv_windows", ("ESP402",), (2, 5), SLOW_HOST, placed=True),
            # Bins.
            Fault("histograms", (*SLOW_RANK, "ESP402"), (100, 300), ("ESP207",), one_rank=True, placed=True),
            Fault("same_core", ("ESP404",), ONCE, ("ESP401",)),
            # Steps between saves.
            Fault("save_often", ("ESP601",), (2, 4), ("ESP402", "ESP806"), placed=True),
        ),
        starts_itself=True,
    ),
    Job(
        "molecules",
        script("eighth/molecules/train"),
        (
            # Molecules.
            Fault("neighbour_loop", ("ESP402",), (4, 10), SLOW_HOST, placed=True),
            # MB.
            Fault("tabled_pairs", ("ESP301", "ESP304"), (0.5, 1.5), ("ESP302", "ESP309")),
            # Batches.
            Fault("judge", (*SLOW_RANK, "ESP402"), (6, 12), ("ESP301", "ESP806"), one_rank=True, placed=True),
            Fault("quota", (*SLOW_RANK, "ESP404"), (0.5, 0.75), one_rank=True, quota=True),
            Fault("link", ("ESP301", "ESP304"), (0.25, 0.5), ("ESP309",), one_rank=True, link=True),
        ),
        hosts=Hosts((0.8, 0.8), ("400mbit", "400mbit")),
    ),
    Job(
        "boxes",
        script("eighth/boxes/train"),
        (
            # Points of eight in each direction that are turned.
            Fault("jitter", INPUT, (3, 5), ("ESP404",), module="data"),
            # Times.
            Fault("noisy_scenes", INPUT_OF_ONE, (10, 25), ("ESP404",), one_rank=True, module="data"),
            # Threads.
            Fault("many_threads", ("ESP404",), (4, 8), ("ESP401",)),
            # Boxes a scene.
            Fault("overlap_loop", ("ESP402", "ESP408"), (1, 2), SLOW_HOST, placed=True),
            # Cells.
            Fault("counts_by_cell", ("ESP302",), (24, 64), ("ESP301", "ESP402"), placed=True),
        ),
    ),
)
