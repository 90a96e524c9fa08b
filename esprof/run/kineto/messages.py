"""Peer, channel, group and size of messages over gloo, from the annotations of the recorder (`esprof.run.raw.message`)."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress

import numpy as np

from esprof.run.groups import Group
from esprof.run.kineto.collectives import Launches, Moved
from esprof.run.kineto.rows import Texts
from esprof.run.raw.message import PREFIX, NamedMessage, message_of
from esprof.run.schema import Table


def with_peers(
    moved: Moved, at: np.ndarray, annotations: np.ndarray, names: Texts, launches: Launches, groups: Mapping[str, Group]
) -> Moved:
    """`moved`, completed for each of the rows `at` that begins inside one of the rows `annotations` of its thread.

    Rows are sorted by start; `names` has the name of each. gloo begins the event of a message before the call returns.
    """
    if not len(annotations):
        return moved
    enclosing, found = _enclosing(at, annotations, launches), dict[int, NamedMessage]()
    is_gloo = names.map(lambda name: name.startswith("gloo:"), bool)[at]
    for i in np.flatnonzero((enclosing >= 0) & is_gloo).tolist():
        message = message_of(names.values[names.codes[enclosing[i]]])
        if message is not None and moved.collective[i] == message.word:
            found[i] = message
    rows, words = list(found), [message.word for message in found.values()]
    peer, sent, received = (column.copy() for column in (moved.peer, moved.in_bytes, moved.out_bytes))
    peer[rows] = [message.peer for message in found.values()]
    for word, column in (("send", sent), ("recv", received)):
        mine = [one == word for one in words]
        column[list(compress(rows, mine))] = [message.bytes for message in compress(found.values(), mine)]
    group, dtype, channel = list(moved.group), list(moved.dtype), list(moved.channel)
    for i, message in found.items():
        dtype[i], channel[i] = message.dtype, message.channel
        group[i] = groups[message.group].name if message.group in groups else group[i]
    return replace(moved, peer=peer, channel=channel, in_bytes=sent, out_bytes=received, group=group, dtype=dtype)


def _enclosing(at: np.ndarray, annotations: np.ndarray, launches: Launches) -> np.ndarray:
    """The annotation in which each row begins on its thread; -1 for none."""
    found = np.full(len(at), -1)
    for tid in np.unique(launches.tid[annotations]).tolist():
        mine, here = annotations[launches.tid[annotations] == tid], np.flatnonzero(launches.tid[at] == tid)
        moments = launches.start_ns[at[here]]
        last = np.searchsorted(launches.start_ns[mine], moments, side="right") - 1
        inside = (last >= 0) & (launches.end_ns[mine[last]] >= moments)
        found[here] = np.where(inside, mine[last], -1)
    return found


def without_annotations(events: Table) -> Table:
    """`events` without these annotations: they are not the job's, and its messages have what they say."""
    is_ours = events.matches("name", lambda name: name.startswith(PREFIX))
    return events.where(~is_ours) if is_ours.any() else events
