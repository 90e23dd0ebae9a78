"""Random transformers of a few features each, with the plans that split them."""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from hypothesis import strategies as st
from skeletons import Shape, blocks, skeleton

from armillary import Colwise, PackedColwise, PackedRowwise, ParallelPlan, Skeleton, VocabSplit
from armillary.plan.skeleton import HeadGroup


@dataclass(frozen=True)
class Model:
    """A transformer of one kind of block, and the plan for it."""

    layers: int
    query_heads: int
    key_value_heads: int
    head_dim: int
    hidden: int
    mlp: int
    gates: int
    vocab: int
    bias: bool
    fused: bool
    """Query, key and value in one linear layer."""
    joined: bool
    """Attention and MLP share one output layer, whose input is their concatenation."""

    @property
    def query(self) -> int:
        return self.query_heads * self.head_dim

    @property
    def key_value(self) -> int:
        return self.key_value_heads * self.head_dim

    @cached_property
    def skeleton(self) -> Skeleton:
        layers: dict[str, Shape] = {"norm.weight": (self.hidden,)}
        for name, (outputs, inputs) in self._linears().items():
            layers[f"{name}.weight"] = (outputs, inputs)
            if self.bias:
                layers[f"{name}.bias"] = (outputs,)
        ends = {"embed.weight": (self.vocab, self.hidden), "head.weight": (self.vocab, self.hidden)}
        return skeleton(blocks(self.layers, layers) | ends, [self.heads])

    @property
    def heads(self) -> HeadGroup:
        return HeadGroup(
            "blocks.*",
            self.query_heads,
            self.key_value_heads,
            self.head_dim,
            outputs={
                "q": ("query",),
                "k": ("key_value",),
                "v": ("key_value",),
                "qkv": ("query", "key_value", "key_value"),
            },
            inputs={"out": ("query", None) if self.joined else ("query",)},
        )

    @property
    def plan(self) -> ParallelPlan:
        packed = {
            "qkv": PackedColwise([self.query_heads, self.key_value_heads, self.key_value_heads]),
            "up": PackedColwise([1] * self.gates),
            "out": PackedRowwise([self.query, self.mlp]) if self.joined else "rowwise",
            "down": "rowwise",
        }
        layers = {f"blocks.*.{name}": packed.get(name, "colwise") for name in self._linears()}
        return ParallelPlan({**layers, "embed": VocabSplit(), "head": Colwise(gather=True)})

    def allows(self, tp: int) -> bool:
        """The rule in its plain words, written down a second time."""
        heads = self.query_heads % tp == 0 and (
            self.key_value_heads % tp == 0 or tp % self.key_value_heads == 0
        )
        return heads and self.mlp % tp == 0

    def _linears(self) -> dict[str, Shape]:
        attention = {"q": self.query, "k": self.key_value, "v": self.key_value}
        if self.fused:
            attention = {"qkv": self.query + 2 * self.key_value}
        layers: dict[str, Shape] = {name: (width, self.hidden) for name, width in attention.items()}
        layers["up"] = (self.gates * self.mlp, self.hidden)
        if self.joined:
            return layers | {"out": (self.hidden, self.query + self.mlp)}
        return layers | {"out": (self.hidden, self.query), "down": (self.hidden, self.mlp)}


def _models(tp: int) -> st.SearchStrategy[Model]:
    """Models that mostly allow `tp`."""
    multiples = st.builds(int.__mul__, st.integers(1, 3), st.sampled_from([1, tp, tp]))
    return multiples.flatmap(
        lambda key_value_heads: st.builds(
            Model,
            layers=st.integers(1, 2),
            query_heads=st.integers(1, 3).map(lambda n: n * key_value_heads * tp // gcd(key_value_heads, tp))
            | st.integers(1, 3).map(lambda n: n * key_value_heads),
            key_value_heads=st.just(key_value_heads),
            head_dim=st.integers(1, 4),
            hidden=st.integers(1, 6),
            mlp=multiples,
            gates=st.integers(1, 2),
            vocab=st.integers(1, 20),
            bias=st.booleans(),
            fused=st.booleans(),
            joined=st.booleans(),
        )
    )


CASES = st.sampled_from([1, 2, 3, 4, 6, 8]).flatmap(lambda tp: st.tuples(_models(tp), st.just(tp)))
LEGAL = CASES.filter(lambda case: case[0].allows(case[1]))
SUPER = Model(2, 64, 8, 2, 4, 32, 1, 19, True, False, False)
