"""The eleventh set: forty faults in eight jobs, written before any rule was asked about them.

A finding is accepted where its title says what was planted.
"""

from benchmarks.diagnosis.cases import INPUT, SAVE, SLOW_RANK, Fault, Hosts, Job, script

JOBS = (
    Job(
        "receipts",
        script("eleventh/receipts/train"),
        (
            # Lines on a scan, all of which are unpacked for each.
            Fault("scans", INPUT, (44, 80), ("ESP404",), module="data"),
            # Lines that a rank decodes in each step.
            Fault("beams", (*SLOW_RANK, "ESP402"), (4, 7), one_rank=True, placed=True),
            # Share of the batches that a rank puts in an order of its own.
            Fault("shuffled", ("ESP205", "ESP208"), (0.75, 1), ("ESP202", "ESP301"), module="data"),
            # Characters, counted in a collective each.
            Fault("characters", ("ESP302",), (28, 50), ("ESP301", "ESP402", "ESP408"), placed=True),
            # Columns that each picture is padded to.
            Fault("canvas", ("ESP701",), (330, 400), module="data"),
        ),
    ),
    Job(
        "canopy",
        script("eleventh/canopy/train"),
        (
            # Tiles in an archive, all of which are read for each.
            Fault("archives", INPUT, (12, 24), ("ESP402", "ESP401"), placed=True, module="data"),
            # Encoder blocks whose weights are gathered once more.
            Fault("whole_average", ("ESP301", "ESP302"), (3, 5), ("ESP304", "ESP402", "ESP401"), placed=True),
            # Encoder blocks that are computed twice.
            Fault("recompute", ("ESP504",), (4, 6), ("ESP706",), placed=True, module="model"),
            # Steps from one possible save to the next.
            Fault("best", SAVE, (3, 5), ("ESP806", "ESP402", "ESP301"), placed=True),
            # Steps from one collection to the next.
            Fault("collected", ("ESP403",), (4, 8), ("ESP806",), placed=True),
        ),
    ),
    Job(
        "tutor",
        script("eleventh/tutor/train"),
        (
            # Recent exercises that each row is compared with.
            Fault("compares", INPUT, (4, 8), ("ESP402",), placed=True, module="data"),
            # Tokens that lengths are padded to a multiple of.
            Fault("pads", ("ESP701",), (48, 72), module="data"),
            # Share of the exercises that the hard track has.
            Fault("tracks", ("ESP202",), (0.3, 0.6), ("ESP201", "ESP203", "ESP208"), one_rank=True, module="data"),
            # Collectives.
            Fault("places", ("ESP302",), (40, 80), ("ESP301", "ESP402", "ESP408"), placed=True),
            # Steps between collections.
            Fault("collects", ("ESP403",), (7, 12), ("ESP402", "ESP806"), placed=True),
        ),
        needs=("transformers", "accelerate"),
    ),
    Job(
        "currents",
        script("eleventh/currents/train"),
        (
            # Days in an archive.
            Fault("archives", INPUT, (85, 115), module="data"),
            # Bands.
            Fault("bands", ("ESP402", "ESP408"), (16, 30), ("ESP401",), placed=True),
            # Blocks in double precision.
            Fault("exact", ("ESP708",), (2, 4), ("ESP402", "ESP702"), placed=True),
            # Forward passes.
            Fault("skill", ("ESP706",), (1, 1.4), ("ESP402",), placed=True),
            # Days that are forecast.
            Fault("rollouts", ("ESP402",), (6, 10), ("ESP706", "ESP806"), placed=True),
        ),
        ranks=1,
    ),
    Job(
        "bazaar",
        script("eleventh/bazaar/train"),
        (
            # Columns of the buffer that counts impressions.
            Fault("impressions", ("ESP310", "ESP301", "ESP304"), (160, 280), ("ESP302", "ESP402")),
            # Width of the vectors that were trained elsewhere.
            Fault("pretrained", ("ESP707",), (80, 140), ("ESP301", "ESP304")),
            # Users whose histories are looked through.
            Fault("opened", ("ESP402", "ESP408"), (80, 150), placed=True),
            # Steps from one save to the next.
            Fault("snapshots", SAVE, (1, 1.4), ("ESP806",), placed=True),
            # Share of one host's CPU that is left.
            Fault("tenant", ("ESP404", *SLOW_RANK), (0.62, 0.8), one_rank=True, quota=True),
        ),
        hosts=Hosts(cpu=(0.8, 0.8), rate=("none", "none")),
        true_without_fault=("ESP404",),
    ),
    Job(
        "walker",
        script("eleventh/walker/train"),
        (
            # Groups of sensors, shared one by one in each tick.
            Fault("moments", ("ESP302",), (2, 3), ("ESP301", "ESP402"), placed=True),
            # Share of the walk for which the old policy is asked again in each update.
            Fault("drift", ("ESP706",), (0.5, 0.9), ("ESP402",), placed=True),
            # Ticks of which all robots' infos are kept.
            Fault("infos", ("ESP403",), (600, 1100), ("ESP402",), placed=True),
            # Thousands of values of a layer.
            Fault("histograms", (*SLOW_RANK, "ESP402"), (60, 110), one_rank=True, placed=True),
            # Ticks that each evaluated policy walks for.
            Fault("evaluator", ("ESP404",), (45, 80)),
        ),
        # Updates that follow a walk take longer than the others.
        true_without_fault=("ESP806",),
    ),
    Job(
        "voices",
        script("eleventh/voices/train"),
        (
            # Parts of the embeddings that are gathered by themselves.
            Fault("gathers", ("ESP302",), (15, 24), ("ESP301", "ESP304"), placed=True),
            # None: the last block and the pooling are in float64.
            Fault("double", ("ESP708",), (1, 1)),
            # Thresholds.
            Fault("scoring", ("ESP402", "ESP408"), (800, 1600), ("ESP401", "ESP405", "ESP406"), placed=True),
            # Share of a clip's length that it is longer or shorter.
            Fault("lengths", ("ESP205", "ESP208"), (0.5, 0.8), ("ESP202",)),
            # Earlier weights that are saved with each checkpoint.
            Fault("snapshots", ("ESP601",), (6, 12), ("ESP402", "ESP806"), placed=True),
        ),
        needs=("lightning",),
        true_without_fault=("ESP301",),
    ),
    Job(
        "nuclei",
        script("eleventh/nuclei/train"),
        (
            # Pixels over which the field is smooth.
            Fault("elastic", INPUT, (3.5, 5.5), ("ESP404",), module="data"),
            # Stages of the decoder.
            Fault("recompute", ("ESP504",), (2, 3), ("ESP706",), placed=True, module="model"),
            # Pictures in each step.
            Fault("overlay", (*SLOW_RANK, "ESP402"), (3, 6), ("ESP401", "ESP406"), one_rank=True, placed=True),
            # None: the encoder is trained by no optimizer, but not frozen.
            Fault("unfrozen", ("ESP707",), (1, 1)),
            # Crops of each validation.
            Fault("validation", ("ESP402",), (8, 14), ("ESP806",)),
        ),
    ),
)
