"""The third set: other jobs again, written in other ways than those of the first two, that no rule is to be made with."""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, SLOW_RANK, Fault, Hosts, Job, script

JOBS = (
    Job(
        "clicks",
        script("third/clicks"),
        (
            Fault("polling", SLOW_RANK, (4, 9), one_rank=True, placed=True),
            Fault("fingerprints", SLOW_RANK, (3, 8), one_rank=True, placed=True),
            Fault("second_opinion", SLOW_RANK, (1, 3), one_rank=True, placed=True),
            Fault("gradient_medians", SLOW_RANK, (3, 8), one_rank=True, placed=True),
            Fault("hard_negatives", ("ESP205",), (1.6, 2.2)),
            Fault("pairwise_auc", ("ESP402",), (2, 4), placed=True),
            Fault("refresh", ("ESP807",), (5, 10), placed=True),
            Fault("hiccup", ("ESP807",), (150, 350), second_best=("ESP804",), placed=True),
            Fault("busy_shells", ("ESP404",), (1, 2)),
        ),
    ),
    Job(
        "tongue",
        script("third/tongue"),
        (
            Fault("resume_point", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            # Its name says nothing, and so nothing tells that it saves.
            Fault("roll", (*SAVE, "ESP806"), (5, 8), placed=True),
            Fault("distributed_writer", SAVE, (5, 8), second_best=("ESP806",), placed=True),
            Fault("perplexity", ("ESP806",), (6, 9), placed=True),
        ),
    ),
    Job(
        "molecules",
        script("third/molecules"),
        (
            Fault("table_of_states", ("ESP402",), (2, 7), placed=True),
            Fault("bond_walk", ("ESP402",), (8, 30), placed=True),
            Fault("durable_rows", ("ESP402",), (15, 30), placed=True),
            # Collecting by hand is a line of Python as well as garbage collection.
            Fault("sweep", ("ESP403",), (60, 250), second_best=("ESP402",), placed=True),
            # What is kept makes full collections long, and brings them on.
            Fault("leftovers", ("ESP403",), (4, 8), second_best=("ESP402", "ESP807")),
        ),
        ranks=1,
    ),
    Job(
        "relay",
        script("third/relay"),
        (
            Fault("slow_host", ("ESP202", "ESP203", "ESP404"), (0.5, 0.65), one_rank=True, quota=True),
            Fault("small_quotas", ("ESP404",), (0.5, 0.65), quota=True),
            Fault("slow_link", ("ESP301", "ESP304"), (0.25, 0.4), link=True),
            # Sizes in KiB.
            Fault("confetti", ("ESP302",), (0.5, 4), second_best=("ESP301",)),
            Fault("lump", ("ESP303",), (20, 90), second_best=("ESP301",)),
            # Gradients are sent for each part of a batch, of which nothing but the transfers tells.
            Fault("every_part", ("ESP301",), (1, 1), second_best=("ESP303",)),
        ),
        hosts=Hosts((0.75, 0.75), ("300mbit", "300mbit")),
        # Its links and quotas are a part of any step.
        true_without_fault=("ESP301", "ESP303", "ESP404"),
    ),
    Job(
        "unet",
        script("third/unet"),
        (
            Fault("packed_scans", INPUT_OF_ONE, (4, 12), one_rank=True, placed=True),
            Fault("elastic", INPUT, (8, 30), placed=True),
            # Collation in the training process is Python code on all ranks as well as input data.
            Fault("equalise", INPUT, (10, 25), second_best=("ESP402",), placed=True),
            Fault("forked_again", ("ESP807", *INPUT), (0.25, 0.45)),
            Fault("overlap_check", ("ESP806",), (6, 9), placed=True),
        ),
    ),
    Job(
        "tagger",
        script("third/tagger"),
        (Fault("same_width", ("ESP701",), (40, 52)), Fault("confusions", ("ESP402",), (4, 10), placed=True)),
    ),
)
