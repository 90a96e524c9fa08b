"""The ninth set: forty faults in eight jobs, written before any rule was asked about them.

A finding is accepted where its title says what was planted.
"""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SLOW_RANK, Fault, Hosts, Job, script

JOBS = (
    Job(
        "retrieval",
        script("ninth/retrieval/train"),
        (
            # Tokens to whose multiple each batch is padded.
            Fault("padding", ("ESP701",), (16, 28)),
            # Share of an epoch's batches that each rank shuffles by itself.
            Fault("own_order", ("ESP205",), (0.9, 1.0), ("ESP202", "ESP203"), module="data"),
            # Frozen layers that keep their gradients.
            Fault("unfrozen", ("ESP707",), (1.5, 2.5)),
            # Statistics of each parameter.
            Fault("norms", ("ESP302",), (2, 3), ("ESP301", "ESP402"), placed=True),
            # Steps between two starts of the loader.
            Fault("rounds", INPUT, (3, 5), ("ESP806", "ESP807")),
        ),
        true_without_fault=("ESP807",),
    ),
    Job(
        "sage",
        script("ninth/sage/train"),
        (
            # Arrays of the graph that DDP sends in each step.
            Fault("tables", ("ESP310", "ESP301", "ESP304"), (4, 5), ("ESP302", "ESP309")),
            # Lengths of walks.
            Fault("walks", INPUT, (10, 20), ("ESP404",), module="data"),
            # Share of the nodes that are of the rank's own range.
            Fault(
                "parts",
                ("ESP202", "ESP208"),
                (0.6, 1.0),
                (*INPUT_OF_ONE, "ESP201", "ESP203", "ESP301"),
                one_rank=True,
                module="data",
            ),
            # Steps between two saves.
            Fault("saves", ("ESP601",), (4, 8), ("ESP806", "ESP201", "ESP402"), placed=True),
            # Steps between two collections.
            Fault("collects", ("ESP403",), (5, 8), ("ESP402", "ESP806"), placed=True),
        ),
    ),
    Job(
        "tiles",
        script("ninth/tiles/train"),
        (
            # Radius in pixels of the kernel that smooths the field.
            Fault("elastic", INPUT, (6, 11), ("ESP404",), module="data"),
            # Passes of the model for the metric.
            Fault("again", ("ESP706",), (1, 1.4), ("ESP402",), placed=True),
            # Classes whose two counts are summed over the ranks.
            Fault("reductions", ("ESP302",), (14, 24), ("ESP301", "ESP402"), placed=True),
            # Pixels between the sizes that each rank draws from.
            Fault("scales", ("ESP205",), (14, 22), ("ESP202", "ESP208")),
            # Steps of an epoch.
            Fault("restarts", INPUT, (4, 7), ("ESP806", "ESP807")),
        ),
    ),
    Job(
        "vocoder",
        script("ninth/vocoder/train"),
        (
            # Taps of the filter.
            Fault("resample", INPUT, (5, 9), ("ESP402",), placed=True),
            # Spectra in float64.
            Fault("exact", ("ESP708",), (2, 3)),
            # Zoom of the picture.
            Fault(
                "previews", (*SLOW_RANK, "ESP402"), (3, 4.4), ("ESP301", "ESP205", "ESP806"), one_rank=True, placed=True
            ),
            # Forward passes.
            Fault("attached", ("ESP707", "ESP706"), (1, 1.4), (), placed=True),
            # Steps between collections.
            Fault("collect", ("ESP403",), (5, 9), ("ESP402", "ESP806"), placed=True),
        ),
        needs=("PIL",),
    ),
    Job(
        "dock",
        script("ninth/dock/train"),
        (
            # Ticks that are looked ahead.
            Fault("shaping", ("ESP402",), (24, 40), ("ESP401", "ESP406"), placed=True),
            # Thousands of transitions.
            Fault("rolling", ("ESP402", "ESP501"), (80, 130), ("ESP401",), placed=True, module="memory"),
            # None: it is there or not.
            Fault("tracked", ("ESP707",), (1, 1)),
            # Voyages of each of four processes.
            Fault("scouts", ("ESP404",), (6, 10), ("ESP806",)),
            # Thousands of transitions.
            Fault("backup", ("ESP601",), (40, 60), ("ESP806", "ESP402"), placed=True),
        ),
        ranks=1,
    ),
    Job(
        "demand",
        script("ninth/demand/train"),
        (
            # Share of the quota that is left.
            Fault("quota", (*SLOW_RANK, "ESP404"), (0.55, 0.8), one_rank=True, quota=True),
            # Share of the links' rate that is left.
            Fault("link", ("ESP301", "ESP304"), (0.4, 0.7), ("ESP302", "ESP303", "ESP309"), link=True),
            # Days of all meters' demand that are kept in the module.
            Fault("buffers", ("ESP310", "ESP301", "ESP304"), (40, 70), ("ESP302", "ESP309")),
            # Blocks.
            Fault("precision", ("ESP708",), (1, 2), ("ESP402",)),
            # Days.
            Fault("backtest", (*SLOW_RANK, "ESP402"), (8, 14), ("ESP301", "ESP806"), one_rank=True, placed=True),
        ),
        hosts=Hosts((0.8, 0.8), ("400mbit", "400mbit")),
    ),
    Job(
        "stages",
        script("ninth/stages/train"),
        (
            # Layers that the last stage has too many of.
            Fault("split", ("ESP207",), (2, 2.4), SLOW_RANK),
            # Blocks of each stage.
            Fault("entropy", ("ESP705",), (1.5, 3), ("ESP402", "ESP408"), placed=True),
            # Polls per second.
            Fault("monitor", (*SLOW_RANK, "ESP402", "ESP404"), (40, 70), one_rank=True, placed=True),
            # Sequences.
            Fault("accuracy", ("ESP301",), (4, 8), ("ESP3", "ESP402"), placed=True),
            # Letters of each document.
            Fault("tokenizes", (*INPUT, "ESP402"), (1500, 3000), placed=True, module="data"),
        ),
        starts_itself=True,
    ),
    Job(
        "coach",
        script("ninth/coach/train"),
        (
            # Micro-batches before the last whose gradients are sent too.
            Fault("syncs", ("ESP301",), (2, 3), ("ESP302", "ESP304")),
            # Share of the parameters that are clipped one by one.
            Fault("clips", ("ESP302",), (0.4, 0.8), ("ESP301", "ESP402"), placed=True),
            # Blocks.
            Fault("recompute", ("ESP504",), (2, 3), ("ESP706",)),
            # Micro-batches of a step.
            Fault("accuracy", ("ESP706",), (2, 4), ("ESP402",), placed=True),
            # Share of the conversations that the rank's cache lacks.
            Fault(
                "uncached",
                INPUT_OF_ONE,
                (0.5, 1.0),
                (*SLOW_RANK, "ESP402"),
                one_rank=True,
                placed=True,
                module="data",
            ),
        ),
        true_without_fault=("ESP301",),
    ),
)
