"""The tenth set: forty faults in eight jobs, written before any rule was asked about them.

A finding is accepted where its title says what was planted.
"""

from benchmarks.diagnosis.cases import INPUT, SLOW_RANK, Fault, Hosts, Job, script

JOBS = (
    Job(
        "weather",
        script("tenth/weather/train"),
        (
            # How often the same fields are encoded in a step.
            Fault("reencode", ("ESP706",), (2, 4), ("ESP402",), placed=True),
            # Fields of a buffer that are sent with each forward pass, 40 KiB each.
            Fault("climatology", ("ESP310", "ESP301", "ESP304"), (600, 1000), ("ESP302", "ESP402")),
            # Lead times more or fewer than the mean, as each rank draws.
            Fault("horizon", ("ESP205",), (3, 5), ("ESP201", "ESP202", "ESP203", "ESP301"), module="data"),
            # Times before each sample that its limits are computed from.
            Fault("despike", INPUT, (150, 280), ("ESP402",), placed=True, module="data"),
            # Bands of latitude that are scored apart.
            Fault("scorecard", ("ESP402", "ESP408"), (14, 24), ("ESP401", "ESP406"), placed=True),
        ),
        true_without_fault=("ESP704",),
    ),
    Job(
        "chess",
        script("tenth/chess/train"),
        (
            # Steps in a generation, each of which starts its loader anew.
            Fault("generations", INPUT, (3, 5), ("ESP806", "ESP807")),
            # Blocks of the former player whose gradients are computed.
            Fault("anchor", ("ESP707",), (3, 5)),
            # Moves that each of the processes beside the training plays in a generation.
            Fault("arena", ("ESP404",), (200, 400), ("ESP105", "ESP807")),
            # Games that end in a step, on average.
            Fault("trees", ("ESP403",), (0.12, 0.24), ("ESP402", "ESP806", "ESP807"), placed=True),
            # Positions that are saved with the player.
            Fault("resume", ("ESP601",), (800, 1500), ("ESP402", "ESP806"), placed=True),
        ),
        ranks=1,
        true_without_fault=("ESP704",),
    ),
    Job(
        "dialog",
        script("tenth/dialog/train"),
        (
            # Multiple of tokens that batches are padded to.
            Fault("padding", ("ESP701",), (24, 44), ("ESP205",)),
            # How evenly batches have the same number of rows instead of the same number of tokens: 1 is fully.
            Fault("rows", ("ESP205", "ESP208"), (0.8, 1.0), ("ESP202", "ESP301"), module="data"),
            # Layers below the tuned ones that are not frozen.
            Fault("thawed", ("ESP707",), (3, 3.4), ("ESP301",)),
            # Share of each batch whose logits are gathered.
            Fault("gather", ("ESP301", "ESP304"), (0.45, 0.8), ("ESP402",), placed=True),
            # Steps between collections of garbage.
            Fault("collect", ("ESP403",), (6, 11), ("ESP402", "ESP806"), placed=True),
        ),
        needs=("transformers", "accelerate"),
    ),
    Job(
        "protein",
        script("tenth/protein/train"),
        (
            # Shards, of eight, that a loader worker holds in memory.
            Fault("shards", INPUT, (1, 2), ("ESP404",), module="data"),
            # Blocks that compute the features of pairs anew.
            Fault("pairs", ("ESP706",), (1.6, 2.4), ("ESP402",), placed=True, module="model"),
            # Share of the parameters that are gathered for their average.
            Fault("average", ("ESP302",), (0.25, 0.45), ("ESP301", "ESP402"), placed=True),
            # Chains that a thread scores a step.
            Fault(
                "scorer",
                (*SLOW_RANK, "ESP402"),
                (2, 4),
                ("ESP401", "ESP404", "ESP406"),
                one_rank=True,
                placed=True,
            ),
            # Steps between checkpoints.
            Fault("checkpoint", ("ESP601",), (7, 12), ("ESP302", "ESP402", "ESP806"), placed=True),
        ),
    ),
    Job(
        "traffic",
        script("tenth/traffic/train"),
        (
            # Share of its cores that one host keeps.
            Fault("quota", ("ESP404", *SLOW_RANK), (0.6, 0.85), one_rank=True, quota=True),
            # Share of their rate that the links keep.
            Fault("link", ("ESP301", "ESP304"), (0.2, 0.4), ("ESP905",), link=True),
            # Days of the series that are read anew for each window.
            Fault("archive", (*INPUT, "ESP402"), (3, 6), placed=True, module="data"),
            # Blocks that diffuse in float64, of four.
            Fault("double", ("ESP708",), (2, 4), ("ESP402", "ESP702"), placed=True),
            # Days of the weekly profile that DDP broadcasts as a buffer in each step.
            Fault("buffers", ("ESP310", "ESP301", "ESP304"), (4, 7), ("ESP302", "ESP402")),
        ),
        hosts=Hosts((0.8, 0.8), ("400mbit", "400mbit")),
        true_without_fault=("ESP401", "ESP404", "ESP704"),
    ),
    Job(
        "ads",
        script("tenth/ads/train"),
        (
            # Fields that the loader's worker hashes in Python, of 26.
            Fault("hashing", INPUT, (18, 26), module="data"),
            # Pairs of fields whose products are operations of their own, of 351.
            Fault("pairs", ("ESP408",), (250, 351), ("ESP401", "ESP402", "ESP406"), placed=True),
            # Layers of the pretrained tower that are not frozen, of five.
            Fault("frozen", ("ESP707",), (3, 5)),
            # Fields whose rows are counted in Python, of 26.
            Fault("admission", ("ESP402",), (17, 26), ("ESP401", "ESP406"), placed=True),
            # Steps between saves in the background.
            Fault("saves", ("ESP602", "ESP601"), (4, 8), ("ESP402", "ESP603", "ESP806"), placed=True),
        ),
        ranks=1,
        true_without_fault=("ESP401", "ESP704"),
    ),
    Job(
        "slides",
        script("tenth/slides/train"),
        (
            # Tiles that share a tensor on their way from the worker.
            Fault("pieces", INPUT, (1.5, 3)),
            # Bags whose tiles are encoded again for their attention.
            Fault("weights", ("ESP706",), (2, 3.4), ("ESP402",), placed=True),
            # Norms that are reduced over the ranks one by one.
            Fault("norms", ("ESP302",), (10, 20), ("ESP301", "ESP402"), placed=True),
            # Steps from one collection to the next.
            Fault("collect", ("ESP403",), (6, 12), ("ESP402", "ESP806"), placed=True),
            # Pixels along a side of the picture.
            Fault("heatmap", (*SLOW_RANK, "ESP402"), (360, 560), ("ESP806",), one_rank=True, placed=True),
        ),
        needs=("lightning",),
    ),
    Job(
        "radar",
        script("tenth/radar/train"),
        (
            # Steps that a rank stays in one scene.
            Fault("scenes", ("ESP205",), (2, 4), ("ESP202", "ESP208", "ESP301"), placed=True, module="data"),
            # Sweeps that are merged into a frame.
            Fault("sweeps", INPUT, (2, 3), ("ESP402",), placed=True, module="data"),
            # Convolutions in float64.
            Fault("precise", ("ESP708",), (1, 2)),
            # Tables of 4 MiB each.
            Fault("templates", ("ESP310", "ESP301", "ESP304"), (5, 9), ("ESP302", "ESP305")),
            # Steps from one trim to the next.
            Fault("trim", ("ESP501",), (1.5, 3), ("ESP402", "ESP401"), placed=True),
        ),
    ),
)
