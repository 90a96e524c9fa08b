"""Pages of the findings on waits for input data."""

from esprof.analyzers.rule import Page

_EVIDENCE = (
    "`input stall` is the time per step inside the loader's next(), waiting for a batch or making it. `waits for` "
    "divides the stall of the rank that waits longest by what the worker of its batch did meanwhile, and `parts of "
    "batches` by the parts of its making (`esprof record` records loader workers). `later batches ready` is the wait "
    "in which a later batch was ready. `read again` is the share of the bytes read in later epochs that came from "
    "storage, though the first epoch had read all data. `batch` is the time to make a batch, and `batch cpu` its CPU "
    "time. `stalls in window` is the number of waits of all listed ranks. `cpus for each rank` is how many CPUs it "
    "may use. `source line` is the line with most samples of the training thread, if that thread makes the batches "
    "itself."
)
_ALL_WAITS = "`data=0` of these ranks, as in ESP101."
_SHOWN_BY = "{} All other evidence is as in ESP101."


def _page(id: str, title: str, meaning: str, shown_by: str, saving: str, remedy: str) -> Page:
    """The page of a cause that takes the place of ESP101, with what shows it."""
    return Page(id, title, meaning, _SHOWN_BY.format(shown_by), saving, remedy)


PAGES = (
    Page(
        "ESP101",
        "Ranks wait for input data",
        "The training loop asked its DataLoader for a batch and had to wait. In a job on several ranks one slow loader "
        "stops all of them: the others wait at the next collective, which is not counted as input stall. ESP102 to ESP110 "
        "take the place of this finding where all listed ranks wait for the same cause and the run shows it. ESP111 "
        "covers waits for workers that start.",
        _EVIDENCE,
        "`data=0` of these ranks: replay makes their batches take no time and replays the whole job. But a step "
        "cannot be shorter than the CPU time that its ranks and batches need. If this limit cuts the saving by more "
        "than 20 %, the CPUs are the bottleneck. The saving is then that of `data[ready]=0`, batches that need no "
        "work at all, and `saving with more workers` is an upper bound of what more workers would save.",
        "Use more workers (num_workers), a deeper prefetch, cheaper decoding, faster or closer storage, or a cache. "
        "If only some ranks stall, compare their hosts and storage with those of the others.",
    ),
    _page(
        "ESP102",
        "Ranks wait for batches that wait for storage",
        "Loader workers, or the ranks themselves, are blocked while they read.",
        "During at least half of the waits the making of batches is blocked, and meanwhile the kernel counts bytes "
        'read from storage, or the data set has marked that time with `esprof.stage("read")`.',
        "`storage=2x` of these ranks: what blocks their batches takes half of its time. `data=0` if the ranks make "
        "their batches themselves, or if that what-if is declined.",
        "Use faster or closer storage, fewer and larger files, compressed data, or a cache in memory.",
    ),
    _page(
        "ESP103",
        "Data is read from storage again in each epoch",
        "The page cache replaces what was not read for longest. Epochs in random order read much of that soon after: "
        "a page cache of 35 % of the data answers 7 % of the reads.",
        "As ESP102 for a local disk; and after a complete first epoch at least half of the bytes come from storage "
        "again (`read again`). All ranks are on one host, so nobody else has read the data for the first time.",
        "`cache=SHARE` of these ranks: the memory that the page cache must have, by its hits, as a cache that never "
        "replaces a sample. `storage=2x` if that is less than a twentieth of the data.",
        "Hold as much of the data as fits in `esprof.data.MinIOCache`, give the job more memory, or make the data "
        "smaller.",
    ),
    _page(
        "ESP104",
        "Ranks wait for batches that are decoded or transformed",
        "The batches need much CPU time for decoding or transforms.",
        "CPU time in the parts `decode` and `transform` is at least half of the waits.",
        "`decode=2x` of these ranks, or `loader.workers=N` with enough workers if transforms take longer than "
        "decoding. `data=0` if the ranks make their batches themselves, or if that what-if is declined.",
        "Use a faster decoder, smaller images, transforms of whole batches or on the device, or prepare the data "
        "before training. More workers help if the host has CPUs for them.",
    ),
    _page(
        "ESP105",
        "Ranks wait for batches that wait for a CPU",
        "Loader workers are ready to run, but other threads have the CPUs.",
        "The kernel counts at least a third of the waits as waiting for a CPU.",
        _ALL_WAITS,
        "Look for other work on the host, use fewer threads in ranks and workers, or give the host more CPUs. If "
        "the loader has workers, more of them do not help.",
    ),
    _page(
        "ESP106",
        "Ranks wait for batches that are collated or passed on",
        "Samples are joined to a batch by `collate_fn`, which the worker then serialises for the rank.",
        "The part `collate`, or the time from the end of the making to the return of next(), is at least half of the "
        "waits; the latter only if the training thread does not wait for a CPU for a third as long.",
        "`loader.workers=N` with enough workers for collation, otherwise `data=0`, as in ESP101.",
        "Join arrays at once, return few large tensors, and nothing that the step does not use. If a "
        "StatefulDataLoader saves its state with each batch, raise snapshot_every_n_steps.",
    ),
    _page(
        "ESP107",
        "Ranks wait for batches that are pinned",
        "With `pin_memory=True` one thread of the rank copies each batch to pinned memory.",
        "While batches are made and ready, this thread is in `pin_memory` for at least half of the waits.",
        _ALL_WAITS + " A bound: no remedy removes all of it.",
        "Return fewer, larger tensors, so that the thread needs the GIL less often, or try pin_memory=False.",
    ),
    _page(
        "ESP108",
        "Ranks wait for one batch while later ones are ready",
        "A DataLoader returns batches in order. A slow batch holds up all later ones.",
        "The workers are busy for at most 90 % of a step without stall, and during at least half of the waits a later "
        "batch was ready (`later batches ready`).",
        "`loader.in_order=0` of these ranks, or `loader.prefetch=N`, four times the recorded number, if it saves anything. "
        "Otherwise `data=0`, a bound.",
        "Set in_order=False, if the order of batches need not be reproducible. Or give batches equal work, or raise "
        "prefetch_factor.",
    ),
    _page(
        "ESP109",
        "Too few batches are made ahead",
        "The workers are fast enough on average, but batches or steps scatter by more than the batches made ahead "
        "cover.",
        "The workers are busy for at most 90 % of a step without stall, and four times the batches ahead would save "
        "at least half of the waits.",
        "`loader.prefetch=N` of these ranks, four times the recorded number.",
        "Raise prefetch_factor, if the memory holds more batches.",
    ),
    _page(
        "ESP110",
        "Ranks wait for batches that are slow at regular intervals",
        "Every N batches one takes more than twice as long as the median batch.",
        "At least half of the waits are for such batches, and of the intervals between them at least three quarters "
        "are equal.",
        "`loader.prefetch=N` of these ranks, four times the recorded number, if that saves something; otherwise "
        "`data=0`, as in ESP101.",
        "Find out what happens at this interval, such as the opening of the next file, or one slow worker. Do it "
        "earlier or in smaller parts.",
    ),
)

EPOCH_PAGE = Page(
    "ESP111",
    "Ranks wait for loader workers to start in each epoch",
    "A DataLoader starts its workers again for each epoch, unless `persistent_workers=True`. Until they have started, "
    "imported their modules and received the data set, the rank waits for the first batch.",
    "Based on all recorded epochs but the first. `start up` is the time from the first next() of an epoch to when a "
    "worker begins with its batch, and `epochs` the number of starts. Workers of different epochs are different "
    "processes.",
    "Measured, not replayed: the extra time of the first steps of epochs, less the time to make one batch, if most of it is "
    "in this loader, which also ends the workers of the last epoch and starts processes. Otherwise the start-up. Both are "
    "shares of all steps.",
    "Use persistent_workers=True. If workers are spawned, import less in the main module.",
)
