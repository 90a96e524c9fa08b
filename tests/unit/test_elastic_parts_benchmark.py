"""How the time of a program is divided among its parts."""

from itertools import count

from benchmarks.elastic_parts import Parts


class Doubling:
    factor = 2

    def of(self, number):
        return self.factor * number

    @classmethod
    def by_class(cls, number):
        return cls.factor * number


def test_a_part_has_the_time_that_no_part_within_it_has():
    now = iter([0, 1, 3, 4, 6, 10])
    parts = Parts(lambda: next(now))
    parts.is_on = True
    with parts.part("outer"):
        with parts.part("inner"):
            pass
        with parts.part("inner"):
            pass
    assert parts.take() == {"outer": 10 - 4, "inner": 4}
    assert parts.take() == {}


def test_methods_are_timed_while_it_is_on_and_do_what_they_did(monkeypatch):
    for name in ("of", "by_class"):
        monkeypatch.setattr(Doubling, name, vars(Doubling)[name])  # Restored after the test.
    seconds = count()
    parts = Parts(lambda: next(seconds))
    parts.watch("plain", Doubling, "of")
    parts.watch("of the class", Doubling, "by_class")
    assert (Doubling().of(3), Doubling.by_class(4)) == (6, 8)
    assert parts.take() == {}
    run, found = parts.timed(lambda: Doubling().of(3) + Doubling.by_class(4))
    run()
    assert found == [{"plain": 1, "of the class": 1}]
    assert not parts.is_on
