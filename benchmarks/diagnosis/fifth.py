"""The fifth set: eight other kinds of jobs, with faults as people make them, that no rule is to be made with.

Whoever wrote it knew the families of findings and what the first set names, not the rules: where it is not known which
id names a fault, its family is accepted.
"""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, Fault, Hosts, Job, script

HOST = ("ESP401", "ESP402", "ESP406", "ESP407", "ESP408", "ESP409")
"""What the host does itself: not garbage collection, contention or waits for a device."""

AT_A_LINE = (*HOST, "ESP7")
"""What a line of the training process costs, in Python or in the kernels that it calls."""

COMMUNICATION = ("ESP3",)
LATE_RANK = ("ESP201", "ESP202", "ESP203", "ESP204", "ESP205")

JOBS = (
    Job(
        "photos",
        script("fifth/photos/train"),
        (
            # In pixels: the side of the originals. Workers that decode them need the cores that the ranks compute on.
            Fault("full_decode", INPUT, (200, 320), second_best=("ESP404",), module="data"),
            # In ms a photo.
            Fault("cold_shelf", INPUT_OF_ONE, (7, 10), one_rank=True, module="data"),
            Fault("layer_watch", AT_A_LINE, (1, 3), placed=True),
            Fault("exact_end", ("ESP7",), (1, 1), second_best=HOST, placed=True),
            # One small reduction for each of so many meters, and the line that makes them.
            Fault("meters", COMMUNICATION, (12, 30), second_best=AT_A_LINE, placed=True),
        ),
    ),
    Job(
        "ranker",
        script("fifth/ranker/train"),
        (
            # Collation in the training process is code at a line as well as input data.
            Fault("row_by_row", INPUT, (5, 12), second_best=AT_A_LINE, placed=True, module="data"),
            Fault("whales", LATE_RANK, (1.6, 2.6), one_rank=True),
            Fault("auc", AT_A_LINE, (8, 30), placed=True),
            Fault("journal", AT_A_LINE, (8, 30), placed=True),
            # A thread that holds Python's lock for so many ms in a row.
            Fault("popularity", LATE_RANK, (10, 40), second_best=("ESP4",), one_rank=True, placed=True),
        ),
    ),
    Job(
        "phonemes",
        script("fifth/phonemes/train"),
        (
            Fault("pad_to_limit", ("ESP701",), (150, 220)),
            Fault("frame_by_frame", AT_A_LINE, (1, 1), placed=True, module="model"),
            Fault("error_rate", AT_A_LINE, (4, 12), placed=True),
            # Every so many steps. Collecting by hand is a line of code as well as garbage collection.
            Fault("tidy", ("ESP403",), (3, 8), second_best=("ESP806", *AT_A_LINE), placed=True),
            # In ms for 4 KiB of the log.
            Fault("slow_share", AT_A_LINE, (2, 8), placed=True),
        ),
        ranks=1,
    ),
    Job(
        "faces",
        script("fifth/faces/train"),
        (
            Fault("small_change", ("ESP302",), (1, 1), second_best=COMMUNICATION),
            Fault("undetached", AT_A_LINE, (1, 1), placed=True),
            Fault("smoothness", AT_A_LINE, (8, 24), placed=True),
            Fault("shadow", AT_A_LINE, (2, 6), placed=True),
            # In rows of a sheet that one rank draws every sixth step; the other waits.
            Fault("gallery", (*LATE_RANK, "ESP806"), (3, 7), second_best=AT_A_LINE, one_rank=True, placed=True),
        ),
    ),
    Job(
        "compact",
        script("fifth/compact/train"),
        (
            Fault("asked_twice", AT_A_LINE, (1, 1), placed=True),
            Fault("taught_teacher", AT_A_LINE, (1, 1), placed=True),
            # In threads of each rank, which has one core.
            Fault("crowded", ("ESP404",), (3, 6)),
            # In ms that another process on the rank's core rests after each 20 ms.
            Fault("neighbour", (*LATE_RANK, "ESP404"), (20, 80), one_rank=True),
            Fault("roll_call", LATE_RANK, (16, 64), second_best=AT_A_LINE, one_rank=True, placed=True),
        ),
    ),
    Job(
        "pilot",
        script("fifth/pilot/train"),
        (
            Fault("one_by_one", AT_A_LINE, (4, 14), placed=True),
            Fault("lookout", AT_A_LINE, (1, 5), placed=True, module="world"),
            Fault("shuffled", AT_A_LINE, (1, 3), placed=True),
            # In moves, every eighth step.
            Fault("exam", ("ESP806",), (40, 120), second_best=("ESP807", *AT_A_LINE), placed=True),
            Fault("blank_pages", ("ESP5", *AT_A_LINE), (600, 2000), placed=True),
        ),
        ranks=1,
        # It simulates the world between updates, fault or not.
        true_without_fault=AT_A_LINE,
    ),
    Job(
        "roads",
        script("fifth/roads/train"),
        (
            Fault("thin_pipes", ("ESP301", "ESP304"), (0.35, 0.6), second_best=COMMUNICATION, link=True),
            Fault("thin_pipe", ("ESP301", "ESP304"), (0.3, 0.5), second_best=COMMUNICATION, one_rank=True, link=True),
            Fault("small_host", (*LATE_RANK, "ESP404"), (0.55, 0.75), one_rank=True, quota=True),
            Fault("by_hand", COMMUNICATION, (1, 1), second_best=AT_A_LINE, placed=True),
            # What all ranks gather each step is communication, and the line that gathers is code.
            Fault("pooled", (*COMMUNICATION, *AT_A_LINE), (20, 60), placed=True),
        ),
        hosts=Hosts((0.75, 0.75), ("600mbit", "600mbit")),
        # Its links and quotas are a part of any step.
        true_without_fault=("ESP301", "ESP303", "ESP304", "ESP404"),
    ),
    Job(
        "stories",
        script("fifth/stories/train"),
        (
            Fault("eager", COMMUNICATION, (1, 1)),
            Fault("whole_clip", (*COMMUNICATION, *AT_A_LINE), (1, 1), placed=True),
            # In layers that compute their activations again.
            Fault("thrift", AT_A_LINE, (2, 4), second_best=("ESP5",), placed=True, module="model"),
            # Every so many steps.
            Fault("keepsake", SAVE, (4, 8), second_best=("ESP806",), placed=True),
            Fault("drawn_mask", AT_A_LINE, (1, 3), placed=True, module="model"),
        ),
    ),
)
