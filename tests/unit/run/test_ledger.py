"""The ledger of a Run: lines that are only appended, whatever else stands there."""

import msgspec
import pytest

from esprof.core.errors import OutputError
from esprof.run import ledger
from tests.cases.ledger import outcome_of, promised


def test_lines_come_back_in_their_order(tmp_path):
    first, second = promised("bucket_mb=4"), promised("compress=fp16")
    written = [first, second, outcome_of(second)]
    for line in written:
        ledger.append(tmp_path / "run", line)
    assert list(ledger.read(tmp_path / "run")) == written


def test_a_run_without_a_ledger_has_no_lines(tmp_path):
    assert ledger.read(tmp_path) == ()


def test_a_torn_line_costs_itself_alone(tmp_path):
    promise = promised("bucket_mb=4")
    ledger.append(tmp_path, promise)
    file = ledger.path_of(tmp_path)
    with file.open("ab") as torn:
        torn.write(msgspec.json.encode(outcome_of(promise))[:100])
    ledger.append(tmp_path, promise)
    assert ledger.read(tmp_path) == (promise, promise)


def test_what_is_no_line_of_ours_is_passed_over(tmp_path):
    promise = promised("bucket_mb=4")
    foreign = [b"", b"\xff\xfe", b"[1, 2]", b'{"what": "else"}', b'{"what": "promised"}', b"[" * 10_000]
    ledger.path_of(tmp_path).write_bytes(b"\n".join([*foreign, msgspec.json.encode(promise), b""]))
    assert ledger.read(tmp_path) == (promise,)


def test_a_ledger_that_was_written_by_hand_is_read(tmp_path):
    """Fixes the names of the fields: ledgers outlive the esprof that wrote them."""
    ledger.path_of(tmp_path).write_text(
        '{"what":"verified","id":"ab","time_ns":1,"spec":"bucket_mb=4","terms":["bucket_mb"],"job":{"backend":"gloo",'
        '"devices":"CPU","world_size":2,"gradients":"DDP"},"by":"verify","repeats":3,"before":{"us":100,"low_us":98,'
        '"high_us":102},"predicted":{"us":90,"low_us":88,"high_us":92},"observed":{"us":91},"error_pct":-1.1,"held":true,'
        '"versions":{"torch":"2.13.0"}}\n'
    )
    (line,) = ledger.read(tmp_path)
    assert isinstance(line, ledger.ObservedOutcome)
    assert (line.predicted.us, line.observed.low_us, str(line.job)) == (90, None, "DDP, gloo, 2 × CPU")


def test_a_ledger_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "run").write_text("no folder")
    with pytest.raises(OutputError):
        ledger.append(tmp_path / "run", promised("bucket_mb=4"))


def test_a_promise_as_shares_of_the_step():
    promise = promised("bucket_mb=4", step_us=200, predicted_us=150, saving_us=(40, 60))
    assert promise.shares == pytest.approx((0.75, 0.7, 0.8))
