"""The owners of blocks, against a model that keeps whole sequences."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from torch_neuronx.serving.blocks import BlockManager, digests

SIZE = 2


class Cache(RuleBasedStateMachine):
    """Sequences come, grow, publish and go; what a block holds is kept beside it."""

    @initialize(count=st.integers(1, 8))
    def start(self, count: int) -> None:
        self.manager = BlockManager(count, SIZE)
        self.content: dict[int, tuple[int, ...]] = {}
        self.sequences: list[tuple[list[int], list[int]]] = []  # tokens and blocks

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def come(self, tokens: list[int]) -> None:
        names = list(digests(tokens, SIZE))
        shared = self.manager.share(names)
        for i, block in enumerate(shared):
            assert self.content[block] == tuple(tokens[: (i + 1) * SIZE])
        needed = self.manager.blocks_for(len(tokens)) - len(shared)
        free = self.manager.available
        more = self.manager.allocate(needed)
        if more is None:
            assert needed > free
            self.manager.release(shared)
            return
        owned = [b for _, blocks in self.sequences for b in blocks]
        assert len(set(more)) == needed
        assert not set(more) & {*owned, *shared}
        for i, block in enumerate(more, len(shared)):
            self.content[block] = tuple(tokens[: (i + 1) * SIZE])
        blocks = shared + more
        for name, block in zip(names, blocks, strict=False):
            self.manager.publish(block, name)
        self.sequences.append((tokens, blocks))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.sequences) - 1))
        self.manager.release(self.sequences.pop(number)[1])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def find_own_prefix(self, data: st.DataObject) -> None:
        """What a living sequence has published can be found."""
        tokens, _ = data.draw(st.sampled_from(self.sequences))
        names = list(digests(tokens, SIZE))
        found = self.manager.share(names)
        assert len(found) == len(names)
        self.manager.release(found)

    @invariant()
    def counts(self) -> None:
        owned = {b for _, blocks in self.sequences for b in blocks}
        assert self.manager.used == len(owned) <= self.manager.most_used
        assert self.manager.available == self.manager.count - len(owned)

    def teardown(self) -> None:
        for _, blocks in getattr(self, "sequences", []):
            self.manager.release(blocks)


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_block_unused_for_longest_goes_first() -> None:
    manager = BlockManager(2, SIZE)
    first, second = [1, 2], [3, 4]
    for tokens in (first, second, first):  # the first is used again
        names = list(digests(tokens, SIZE))
        blocks = manager.share(names) or manager.allocate(1)
        assert blocks is not None
        manager.publish(blocks[0], names[0])
        manager.release(blocks)
    assert manager.kept == 2
    assert manager.allocate(1) is not None
    assert manager.evictions == 1
    assert manager.share(list(digests(second, SIZE))) == []
    assert len(manager.share(list(digests(first, SIZE)))) == 1


def test_names_depend_on_everything_before() -> None:
    assert list(digests([1, 2, 3, 4], 2))[1] != list(digests([2, 1, 3, 4], 2))[1]
    assert list(digests([1, 2, 3], 2)) == list(digests([1, 2, 9], 2))


def test_forgetting() -> None:
    manager = BlockManager(2, SIZE)
    blocks = manager.allocate(1)
    assert blocks is not None
    manager.publish(blocks[0], b"a")
    manager.release(blocks)
    manager.forget()
    assert (manager.share([b"a"]), manager.available, manager.kept) == ([], 2, 0)


def test_nothing() -> None:
    with pytest.raises(ValueError, match="a cache of 0 blocks of 16 tokens holds nothing"):
        BlockManager(0, 16)
