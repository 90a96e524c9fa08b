"""Which ESTs run on which rank of a running job, how they move, and how their batches are made."""

from esprof.core.assignment import Assignment, Est
from esprof.core.plan import LoaderBody
from esprof.core.types import Bytes
from esprof.elastic.data.feed import Feed, loads_ahead
from esprof.elastic.runtime.context import move
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport


class EstPlacement:
    """The job's assignment as it is now. All ranks make the same calls."""

    def __init__(self, assignment: Assignment, state: TrainingState, feed: Feed, transport: Transport) -> None:
        self.assignment = assignment
        self._state, self._feed, self._transport = state, feed, transport

    @property
    def mine(self) -> tuple[Est, ...]:
        """The ESTs of this rank, in the order in which they run."""
        return self.assignment.ests[self._transport.rank]

    @property
    def largest_context(self) -> Bytes:
        """Size of the largest EST context that this rank has; 0 where it has none."""
        contexts = self._state.contexts.values()
        return max((sum(tensor.nbytes for tensor in context.tensors().values()) for context in contexts), default=0)

    @property
    def loader(self) -> LoaderBody | None:
        """How this rank makes its batches; None if the script's own loaders do."""
        return self._feed.loader

    def use_loader(self, loader: LoaderBody) -> None:
        """Make batches so from the next step on."""
        self._feed.use_loader(loader)
        self.begin()

    def begin(self) -> None:
        """Feed this rank's ESTs from the next step on."""
        self._feed.order.forget()
        self._feed.move(self.mine, self._state.next_step)

    def note_changes(self) -> None:
        """Note what the script has changed in attributes and data. Loader processes, which have copies of a dataset as it
        was, start anew where it has changed."""
        self._state.attributes.note()
        if self._state.reached.note():
            self._feed.order.forget()
            if loads_ahead(self._feed):
                self.begin()

    def move(self, assignment: Assignment) -> None:
        """Use `assignment` from the next step on, and move the state of ESTs to their new ranks."""
        move(self._state.contexts, self.assignment, assignment, self._transport, self._state.device)
        self.assignment = assignment
        self.begin()
