"""Context parallelism: the rows of a sequence over ranks, and attention that still sees every key once.

The rows are cut into ranges like everything else, so lengths need not divide. Two axes share the work:

    outer  `ring` (keys and values are passed round) or `gather` (they are gathered)
    inner  `ulysses` (heads are exchanged for rows)

A prefix of keys and values (the prompt) is known to every rank in full; a query sees it exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from armillary.parallel.collectives import Group
from armillary.parallel.flash import attend_with_lse, merge
from armillary.plan.ranges import Range, Segment, cut

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(query [n, heads, size], key, value [m, key/value heads, size]) -> [n, heads, size], full attention."""


@dataclass(frozen=True)
class Rows:
    """How the rows of one sequence lie on the ranks: outer group by outer group, Ulysses rank by rank."""

    ranges: tuple[Range, ...]
    """Of every position in order; a position may have none."""

    @classmethod
    def of(cls, length: int, positions: int) -> Rows:
        """`length` rows over `positions` ranks, as evenly as they go."""
        shard = cut(0, [Segment(units=length, uneven=True)], positions)
        return cls(tuple((shard.ranges(p) or ((length, length),))[0] for p in range(positions)))

    @classmethod
    def of_counts(cls, counts: Sequence[int]) -> Rows:
        """As many rows on every position as `counts` says."""
        stops = [*accumulate(counts)]
        return cls(tuple((stop - count, stop) for stop, count in zip(stops, counts, strict=True)))

    def count(self, position: int) -> int:
        start, stop = self.ranges[position]
        return stop - start


@dataclass(frozen=True)
class Context:
    """The context axes of a mesh, as one rank sees them."""

    ulysses: Group
    gather: Group
    ring: Group

    @classmethod
    def of(cls, groups: Mapping[str, Group]) -> Context:
        """The context axes among a mesh's groups."""
        return cls(groups["ulysses"], groups["gather"], groups["ring"])

    @property
    def outer(self) -> Group:
        """The axis over which chunks of rows lie: `ring` or `gather`, one of which has one rank."""
        return self.ring if self.ring.size > 1 else self.gather

    @property
    def size(self) -> int:
        """Over how many ranks the rows lie."""
        return self.outer.size * self.ulysses.size

    @property
    def position(self) -> int:
        """This rank's place among them."""
        return self.outer.rank * self.ulysses.size + self.ulysses.rank

    def rows(self, length: int) -> Rows:
        """Where the rows of a sequence of `length` lie."""
        return Rows.of(length, self.size)

    def local(self, tensor: torch.Tensor, rows: Rows) -> torch.Tensor:
        """This rank's rows of a tensor that every rank has in full."""
        start, stop = rows.ranges[self.position]
        return tensor[start:stop]

    def whole(self, tensor: torch.Tensor, rows: Rows) -> torch.Tensor:
        """All rows, on every rank, from every rank's own."""
        counts = [rows.count(position) for position in range(self.size)]
        inner = self.ulysses.size
        mine = counts[self.outer.rank * inner : (self.outer.rank + 1) * inner]
        chunk = self.ulysses.all_gather(tensor, mine, dim=0)
        chunks = [sum(counts[at : at + inner]) for at in range(0, len(counts), inner)]
        return self.outer.all_gather(chunk, chunks, dim=0)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        prefix: tuple[torch.Tensor, torch.Tensor] | None,
        rows: Rows,
        attend: Attend,
        *,
        key_rows: Rows | None = None,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Full attention of this rank's query rows over the prefix and the keys of all ranks.

        Args:
            query: [rows here, heads, size]; key, value: [rows here, key/value heads, size]. All may have a
                batch between heads and size.
            prefix: key and value of the prompt, [prompt, key/value heads, size], the same on every rank.
            rows: where the sequence's rows lie; `key_rows` where keys are of another sequence.
            attend: the attention of one device; `ring` has its own, which takes `scale`.

        Returns: [rows here, heads, size].
        """
        key_rows = key_rows or rows
        counts = [rows.count(p) for p in self._chunk(self.outer.rank)]
        query = self._to_heads(query, counts)
        key_counts = [key_rows.count(p) for p in self._chunk(self.outer.rank)]
        prefix = prefix or (key[:0], value[:0])
        key, value, *prefix_heads = self._key_value_heads(key, value, prefix, key_counts)
        if self.ring.size > 1:
            out = self._pass_round(query, key, value, prefix_heads, key_rows, scale)
        else:
            key, value = self._gathered(key, value, key_rows)
            if prefix_heads[0].shape[0]:
                key, value = torch.cat([prefix_heads[0], key]), torch.cat([prefix_heads[1], value])
            out = attend(query, key, value) if query.shape[0] else query
        return self._to_rows(out, counts)

    def without_ring(self) -> Context:
        """The same ranks, which gather keys and values in place of passing them round."""
        return replace(self, gather=self.outer, ring=Group("ring"))

    def _gathered(
        self, key: torch.Tensor, value: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of every chunk, in one all-gather."""
        if self.gather.size == 1:
            return key, value
        sizes = [sum(rows.count(p) for p in self._chunk(c)) for c in range(self.gather.size)]
        keys, values = self.gather.all_gather(torch.stack([key, value], dim=1), sizes, dim=0).unbind(1)
        return keys, values

    def _chunk(self, outer_rank: int) -> range:
        """Positions of one outer rank."""
        return range(outer_rank * self.ulysses.size, (outer_rank + 1) * self.ulysses.size)

    def _to_heads(self, query: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Rows here with all heads -> rows of the whole chunk with this rank's heads."""
        segment = Segment(units=query.shape[1])
        return self._exchange_heads(query, segment, counts)

    def _key_value_heads(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        prefix: tuple[torch.Tensor, torch.Tensor],
        counts: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same for keys and values, in one exchange; where there are fewer heads than ranks, each goes
        to the ranks whose queries need it. Of the prefix every rank keeps its heads."""
        if self.ulysses.size == 1:
            return key, value, *prefix
        segment = Segment(units=key.shape[1], copies=True)
        start, stop = segment.run(self.ulysses.rank, self.ulysses.size)
        pair = torch.stack([key, value], dim=2)
        keys, values = self._exchange_heads(pair, segment, counts).unbind(2)
        return keys, values, prefix[0][:, start:stop], prefix[1][:, start:stop]

    def _exchange_heads(self, tensor: torch.Tensor, segment: Segment, counts: Sequence[int]) -> torch.Tensor:
        """[rows here, heads, ...] -> [rows of the chunk, this rank's heads, ...]."""
        degree = self.ulysses.size
        if degree == 1:
            return tensor
        runs = [segment.run(rank, degree) for rank in range(degree)]
        mine = runs[self.ulysses.rank][1] - runs[self.ulysses.rank][0]
        shapes = [(count, mine, *tensor.shape[2:]) for count in counts]
        received = self.ulysses.exchange([tensor[:, a:b] for a, b in runs], shapes)
        return torch.cat(received)

    def _to_rows(self, out: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Rows of the chunk with this rank's heads -> rows here with all heads."""
        if self.ulysses.size == 1:
            return out
        here = counts[self.ulysses.rank]
        shapes = [(here, *out.shape[1:])] * self.ulysses.size
        return torch.cat(self.ulysses.exchange(list(out.split(list(counts))), shapes), dim=1)

    def _pass_round(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        prefix: Sequence[torch.Tensor],
        rows: Rows,
        scale: float | None,
    ) -> torch.Tensor:
        """Chunk by chunk: the own one together with the prefix first, then each that comes round."""
        parts = []
        chunk = torch.stack([key, value], dim=1)
        keys, values = torch.cat([prefix[0], key]), torch.cat([prefix[1], value])
        for step in range(self.ring.size):
            owner = (self.ring.rank - step) % self.ring.size
            coming = (owner - 1) % self.ring.size
            if step < self.ring.size - 1:
                size = sum(rows.count(p) for p in self._chunk(coming))
                arriving = self.ring.rotate(chunk, (size, *chunk.shape[1:]))
            # no key, no part: the kernel must not be given an empty chunk
            if query.shape[0] and keys.shape[0]:
                parts.append(attend_with_lse(query, keys, values, scale))
            if step < self.ring.size - 1:
                chunk = arriving()
                keys, values = chunk.unbind(1)
        return merge(parts, query)
