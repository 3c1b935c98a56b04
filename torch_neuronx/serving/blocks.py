"""The blocks of a paged cache: owners, sharing of equal prefixes, eviction.

A block holds keys and values of `size` tokens in all layers. Full blocks whose content is complete
are *published* under a digest of all tokens from the start of the sequence to the end of the block,
on which keys and values depend and on nothing else. A later request with the same prefix takes them
instead of computing them. When the last owner of a published block is gone, the block stays
findable until its memory is needed: the one unused for longest goes first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

__all__ = ["BlockManager", "digests"]


def digests(tokens: Sequence[int], size: int) -> Iterator[bytes]:
    """Iterate over the names of the full blocks of a sequence.

    A name is a digest that nobody can find a second content for, since it decides whose keys a
    request reads: prompts come from anybody.
    """
    name = b""
    for start in range(0, len(tokens) - size + 1, size):
        block = array("q", tokens[start : start + size]).tobytes()
        name = hashlib.blake2b(name + block, digest_size=16).digest()
        yield name


class BlockManager:
    """Counts the owners of every block; touches no memory of the device.

    Attributes:
        count: Blocks there are.
        size: Tokens of a block.
        most_used: The largest number of blocks that had an owner at the same time.
        evictions: Published blocks whose memory was taken for something else.
    """

    def __init__(self, count: int, size: int) -> None:
        """Make `count` blocks of `size` tokens, all free.

        Raises:
            ValueError: Either is not positive.
        """
        if count < 1 or size < 1:
            raise ValueError(f"a cache of {count} blocks of {size} tokens holds nothing")
        self.count, self.size = count, size
        self.most_used = 0
        self.evictions = 0
        self._owners = [0] * count
        self._published: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        # Without an owner, the next to be taken first: those that nobody could find, then those
        # that were released longest ago.
        self._blank = list(range(count - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that have an owner."""
        return self.count - self.available

    @property
    def available(self) -> int:
        """Blocks that can be allocated."""
        return len(self._blank) + len(self._kept)

    @property
    def kept(self) -> int:
        """Blocks without an owner that can still be found."""
        return len(self._kept)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        return -(-tokens // self.size)

    def allocate(self, count: int) -> list[int] | None:
        """Return blocks with one owner each, or None if there are not enough."""
        if count > self.available:
            return None
        taken = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _ = self._kept.popitem(last=False)
                del self._published[self._names.pop(block)]
                self.evictions += 1
            self._owners[block] = 1
            taken.append(block)
        self.most_used = max(self.most_used, self.used)
        return taken

    def share(self, names: Sequence[bytes]) -> list[int]:
        """Return the published blocks that a sequence begins with, with one owner more each."""
        found = []
        for name in names:
            block = self._published.get(name)
            if block is None:
                break
            if self._owners[block] == 0:
                del self._kept[block]
            self._owners[block] += 1
            found.append(block)
        self.most_used = max(self.most_used, self.used)
        return found

    def publish(self, block: int, name: bytes) -> None:
        """Let others find an owned block whose keys and values are computed."""
        assert self._owners[block] > 0
        # Two requests may have computed the same prefix side by side: one of them is enough.
        if name not in self._published and block not in self._names:
            self._published[name] = block
            self._names[block] = name

    def release(self, blocks: Sequence[int]) -> None:
        """Take one owner from each block of a sequence."""
        # The last block first: a prefix is of use without what follows, but not the other way.
        for block in reversed(blocks):
            assert self._owners[block] > 0
            self._owners[block] -= 1
            if self._owners[block] == 0:
                if block in self._names:
                    self._kept[block] = None
                else:
                    self._blank.append(block)

    def forget(self) -> None:
        """Unpublish everything: the cache's content is no longer valid."""
        self._blank.extend(self._kept)
        self._kept.clear()
        self._published.clear()
        self._names.clear()
