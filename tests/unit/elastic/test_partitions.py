"""Wherever ESTs run and move, every step's bits are those of one process that runs them all; ranks are threads here."""

from dataclasses import replace
from queue import SimpleQueue

from hypothesis import given
from hypothesis import strategies as st

from esprof.elastic import Assignment
from tests.cases.elastic import Job, Samples, curve, loss_fn, on_threads, static_curve, trainer
from tests.cases.properties import thorough

CODECS = ["none", "fp16", "bf16", "topk:0.2"]


@st.composite
def parts(draw, n_est, world):
    """Any assignment, idle ranks and all."""
    owners = draw(st.lists(st.integers(0, world - 1), min_size=n_est, max_size=n_est))
    return [[est for est in range(n_est) if owners[est] == rank] for rank in range(world)]


@st.composite
def runs(draw):
    """A job, a world, and where the ESTs run from which step on."""
    n_est, world = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    switch = draw(st.sampled_from([(), ((2, "fp16"),), ((2, "topk:0.5"),)]))
    job = Job(
        draw(st.sampled_from(["mlp", "conv"])),
        n_est=n_est,
        steps=4,
        samples=2 * n_est * 4 - 1,
        accumulate=draw(st.integers(1, 2)),
        drop_last=draw(st.booleans()),
        codecs=((0, draw(st.sampled_from(CODECS))), *switch),
        bucket_mb=draw(st.sampled_from([0.001, None])),
    )
    return job, world, {step: draw(parts(n_est, world)) for step in (0, 1, 3)}


@thorough(30)
@given(runs())
def test_any_history_gives_the_bits_of_the_static_run(run):
    job, world, history = run
    for bits in on_threads(world, lambda transport: curve(job, history, transport)):
        assert bits == static_curve(replace(job, bucket_mb=0.001))


@thorough(15)
@given(runs())
def test_every_sample_is_seen_once_an_epoch(run):
    job, world, history = run
    job = replace(job, model="mlp", codecs=((0, "none"),), prove_every=0)
    queue = SimpleQueue()  # A list would belong to each EST.

    class Noted(Samples):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], index

    def noting(model, batch):
        queue.put(batch[1].tolist())
        return loss_fn(model, (batch[0], batch[1] % 5))

    def body(transport):
        elastic = trainer(job, history[0], transport, dataset=Noted(job.samples, tokens=False), loss_fn=noting)
        for step in range(elastic.order.steps_per_epoch):
            if step and step in history:
                elastic.assign(Assignment.of(history[step]))
            elastic.step()
        return elastic.order

    (order, *_) = on_threads(world, body)
    seen = [sample for _ in range(queue.qsize()) for sample in queue.get()]
    assert len(seen) == len(set(seen))
    assert len(seen) == (order.steps_per_epoch * order.per_step if job.drop_last else job.samples)
