"""The sixth set: written without knowledge of the rules and of the other sets.

Eight kinds of training: of spoken words, of pictures with captions, of a diffusion model, of a graph network, of
experts that are spread over ranks, of a player of games, of adapters, and of a translator on two hosts. Where no
finding is titled as the fault is, what leads to it is accepted: computing more than is needed has no id of its own.
"""

from benchmarks.diagnosis.cases import INPUT, INPUT_OF_ONE, SAVE, SLOW_RANK, Fault, Hosts, Job, script

PYTHON = ("ESP401", "ESP402", "ESP408")
"""Many small operations that Python starts one by one."""

COMPUTE = ("ESP704",)
"""What is left to say where all ranks compute more than they need to."""

JOBS = (
    Job(
        "keywords",
        script("sixth/keywords/train"),
        (
            Fault("resample", INPUT, (0.5, 0.9), second_best=("ESP404",), module="data"),
            Fault("slow_worker", INPUT, (0.75, 0.95), second_best=("ESP8",), module="data"),
            Fault("no_workers", INPUT, (1, 1), second_best=("ESP402",), module="data"),
            Fault("rank_of_truth", PYTHON, (18, 30), second_best=("ESP406",), placed=True),
            Fault("validate", ("ESP806",), (3, 5), second_best=("ESP804", "ESP4", "ESP101"), placed=True),
        ),
        ranks=1,
    ),
    Job(
        "captions",
        script("sixth/captions/train"),
        (
            Fault("warp", (*INPUT, "ESP402"), (0.3, 0.8), second_best=("ESP4",), placed=True, module="data"),
            Fault("full_context", ("ESP701",), (24, 34), second_best=COMPUTE, module="data"),
            Fault("gather_rows", ("ESP302",), (8, 20), second_best=("ESP3",), placed=True),
            Fault("hard_negatives", PYTHON, (0.6, 1.0), second_best=("ESP406",), placed=True),
            Fault(
                "background_save",
                (*SAVE, "ESP404"),
                (7, 12),
                second_best=("ESP2", "ESP4", "ESP806"),
                one_rank=True,
                placed=True,
            ),
        ),
    ),
    Job(
        "denoise",
        script("sixth/denoise/train"),
        (
            Fault("eager_pool", ("ESP404",), (10, 20), second_best=("ESP2", "ESP4"), placed=True),
            Fault("recompute", COMPUTE, (2, 6), second_best=("ESP7", "ESP4"), placed=True, module="model"),
            Fault("activations", PYTHON, (0.5, 1.0), second_best=("ESP501", "ESP4"), placed=True),
            Fault("averages", PYTHON, (3, 6), second_best=("ESP501", "ESP4"), placed=True),
            Fault("preview", ("ESP806", "ESP202"), (4, 8), second_best=("ESP2", "ESP804"), one_rank=True, placed=True),
        ),
    ),
    Job(
        "molecules",
        script("sixth/molecules/train"),
        (
            Fault("find_edges", (*INPUT, "ESP402"), (0.4, 1.0), second_best=("ESP4",), placed=True, module="data"),
            Fault(
                "big_molecules",
                ("ESP202", "ESP208"),
                (0.3, 0.6),
                second_best=("ESP201", "ESP203", "ESP205", "ESP206"),
                one_rank=True,
                module="data",
            ),
            Fault("one_by_one", PYTHON, (1, 2), second_best=("ESP4", "ESP7"), placed=True, module="model"),
            Fault("barriers", ("ESP302",), (10, 18), second_best=("ESP3", "ESP205"), placed=True),
            Fault("collect", ("ESP403",), (7, 14), second_best=("ESP402", "ESP806"), placed=True),
        ),
    ),
    Job(
        "experts",
        script("sixth/experts/train"),
        (
            Fault(
                "hot_expert",
                ("ESP202", "ESP208"),
                (0.1, 0.4),
                second_best=("ESP201", "ESP203", "ESP205", "ESP301"),
                one_rank=True,
                module="model",
            ),
            Fault("slices", ("ESP302",), (3, 4), second_best=("ESP3", "ESP4"), placed=True, module="model"),
            Fault("capacity", ("ESP701",), (1.8, 3), second_best=(*COMPUTE, "ESP3"), placed=True, module="model"),
            Fault("by_hand", ("ESP302", "ESP303"), (16000, 48000), second_best=("ESP3",), placed=True),
            Fault(
                "route_log",
                ("ESP201", "ESP402"),
                (0.8, 1.0),
                second_best=("ESP203", "ESP401", "ESP406", "ESP408"),
                one_rank=True,
                placed=True,
            ),
        ),
    ),
    Job(
        "catch",
        script("sixth/catch/train"),
        (
            Fault(
                "game_by_game", ("ESP402",), (60, 180), second_best=("ESP401", "ESP406"), placed=True, module="games"
            ),
            Fault("archive", ("ESP402", "ESP406"), (3, 6), second_best=("ESP4",), placed=True),
            Fault("spectator", ("ESP402", "ESP406"), (5000, 12000), second_best=("ESP4",), placed=True),
            Fault("double", ("ESP702",), (1, 1), second_best=("ESP7", "ESP4"), placed=True),
            Fault("grow_memory", ("ESP501",), (2000, 4000), second_best=("ESP4", "ESP7"), placed=True),
        ),
        ranks=1,
    ),
    Job(
        "adapter",
        script("sixth/adapter/train"),
        (
            Fault("wrap_all", ("ESP302",), (1, 2), second_best=("ESP3",)),
            Fault("unfrozen", (*COMPUTE, "ESP301"), (1, 3), second_best=("ESP3", "ESP7"), module="model"),
            Fault("by_formula", ("ESP705",), (2, 3), second_best=("ESP7", "ESP501"), placed=True, module="model"),
            Fault("save_all", SAVE, (2, 4), second_best=("ESP806", "ESP3"), placed=True),
            Fault(
                "uncached",
                INPUT_OF_ONE,
                (200, 360),
                second_best=("ESP2", "ESP402"),
                one_rank=True,
                placed=True,
                module="data",
            ),
        ),
    ),
    Job(
        "translate",
        script("sixth/translate/train"),
        (
            Fault("quota", ("ESP404",), (0.45, 0.6), second_best=SLOW_RANK, one_rank=True, quota=True),
            Fault("link", ("ESP301", "ESP304"), (0.2, 0.35), second_best=("ESP3", "ESP905"), link=True),
            Fault("unsorted", ("ESP701",), (1, 1), second_best=("ESP205", "ESP208", *COMPUTE), module="data"),
            Fault("word_by_word", PYTHON, (1, 1), second_best=("ESP4", "ESP7"), placed=True, module="model"),
            Fault("same_weights", ("ESP301",), (1, 1), second_best=("ESP3",), placed=True),
        ),
        hosts=Hosts(cpu=(0.8, 0.8), rate=("2gbit", "2gbit")),
        # Its links and quotas are a part of any step: the kernel throttles its ranks for 12 and 18 ms of 104.
        true_without_fault=("ESP301", "ESP404"),
    ),
)
