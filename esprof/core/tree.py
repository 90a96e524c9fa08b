"""The fixed order in which gradients are added: a binary tree over the EST numbers that depends only on their count.

Floating-point addition is not associative, so a sum has the same bits only if its parentheses are the same. The value of a
node is the value of its left child plus that of its right child. Neither the process that adds a node nor the time of the
addition changes the bits.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Node:
    """A subtree: the leaves `first` to `first + count - 1`."""

    first: int
    count: int

    @property
    def children(self) -> tuple["Node", "Node"]:
        """Split at the largest power of two below `count`: a full binary tree on the left."""
        left = 1 << (self.count - 1).bit_length() - 1
        return Node(self.first, left), Node(self.first + left, self.count - left)

    @property
    def is_leaf(self) -> bool:
        return self.count == 1


def cover(owned: Collection[int], n: int) -> list[Node]:
    """Return the largest subtrees of the tree over `n` leaves with all leaves in `owned`, ascending."""

    def within(node: Node) -> Iterator[Node]:
        leaves = range(node.first, node.first + node.count)
        if all(leaf in owned for leaf in leaves):
            yield node
        elif not node.is_leaf:
            for child in node.children:
                yield from within(child)

    return list(within(Node(0, n)))


class Fold(Generic[T]):
    """Adds up values of subtrees that are pushed in ascending order; stores at most log₂ n + 1 for a contiguous range.

    `add(left, right)` may modify and return either argument.
    """

    def __init__(self, n: int, add: Callable[[T, T], T]) -> None:
        self.partials: list[tuple[Node, T]] = []
        """Sums of the subtrees whose sibling is missing, ascending."""
        self._parents = _parents(n)
        self._add = add

    def push(self, node: Node, value: T) -> None:
        self.partials.append((node, value))
        while len(self.partials) > 1:
            (left, left_value), (right, right_value) = self.partials[-2:]
            parent = self._parents.get((left, right))
            if parent is None:
                return
            self.partials[-2:] = [(parent, self._add(left_value, right_value))]

    def parent_with(self, node: Node) -> Node | None:
        """The parent of the newest sum and `node`; None if they are no siblings."""
        return self._parents.get((self.partials[-1][0], node)) if self.partials else None


@cache
def _parents(n: int) -> dict[tuple[Node, Node], Node]:
    """Map (left child, right child) to the parent, in the tree over `n` leaves."""
    parents = {}
    open_nodes = [Node(0, n)]
    while open_nodes:
        node = open_nodes.pop()
        if not node.is_leaf:
            parents[node.children] = node
            open_nodes += node.children
    return parents
