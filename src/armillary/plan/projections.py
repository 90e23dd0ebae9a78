"""The projections of attention modules that no head facts describe, known by the names the field gives them.

Where a family describes its heads (`HeadGroup`), `resolve` judges by those. This is for plans on models that
nobody has described: query, key and value must be split alike, every output projection must take the parts,
and a norm over all heads must be split with them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from armillary.errors import Problem, list_choices
from armillary.plan.explain import key_of
from armillary.plan.skeleton import Parameter, Role, Skeleton
from armillary.plan.styles import Colwise, PackedColwise, Style

_INPUT = re.compile(r"(?:to_|add_|w)?(q|k|v|query|key|value)(?:_proj|_t)?")
_FUSED = re.compile(r"(?:to_|add_)?(?:added_)?q?kv(?:_proj)?")
_OUTPUT = re.compile(r"to_out(_t|\.0)?|to_add_out|o_proj|out_proj|wo")
_NORM = re.compile(r"norm_(added_)?[qk](_t)?|[qk]_norm|(q|k|query|key)_(rms_)?norm(_t)?")

Children = Mapping[str, Mapping[str, Parameter]]
"""Name below the attention module -> the parameters of that module."""


def projection_problems(
    skeleton: Skeleton, styles: Mapping[str, Style], described: Collection[str]
) -> Iterator[Problem]:
    """Attention modules whose projections are split only in part; `described` have head facts of their own.

    A fault that all blocks share is told once.
    """
    faults: dict[tuple[str, str], Problem] = {}
    sizes = {group.module: group.head_dim for group in skeleton.heads}
    for path, children in attentions(skeleton).items():
        name = key_of(path, skeleton.tree) or "the model"
        split = {child for child in children if leaves_parts(styles.get(_join(path, child)))}
        if not split:
            continue
        whole = {child for child in children if _join(path, child) not in styles}
        found = [*_whole_norms(name, children, split, whole, sizes.get(name))]
        if path not in described:
            found += [*_mixed(name, children, split), *_whole_outputs(name, children, split, whole)]
        for problem in found:
            faults.setdefault((problem.rule, name), problem)
    yield from faults.values()


def attentions(skeleton: Skeleton) -> dict[str, Children]:
    """Modules that have a query and a key of their own, or a fused projection beside others."""
    found: dict[str, dict[str, Mapping[str, Parameter]]] = {}
    for path, owned in skeleton.modules.items():
        parent, _, child = path.rpartition(".")
        if child == "0" and parent.endswith("to_out"):  # diffusers keeps a dropout beside it
            parent, child = parent.rpartition(".")[0], "to_out.0"
        if any(kind.fullmatch(child) for kind in (_INPUT, _FUSED, _OUTPUT, _NORM)):
            found.setdefault(parent, {})[child] = owned
    return {path: c for path, c in found.items() if sum(map(is_input, c)) > 1}


def is_input(child: str) -> bool:
    """Whether a layer projects to heads, by its name."""
    return _INPUT.fullmatch(child) is not None or _FUSED.fullmatch(child) is not None


def role_of(child: str) -> Role | None:
    """What a projection to heads is counted in, by its name; None for any other layer."""
    found = _INPUT.fullmatch(child)
    return None if found is None else "query" if found[1][0] == "q" else "key_value"


def fused_roles(child: str) -> tuple[Role, ...]:
    """What a fused projection to heads is counted in, part by part, by its name; () for any other layer."""
    if not _FUSED.fullmatch(child):
        return ()
    return ("query", "key_value", "key_value") if "qkv" in child else ("key_value", "key_value")


def is_output(child: str) -> bool:
    """Whether a layer takes heads, by its name."""
    return _OUTPUT.fullmatch(child) is not None


def is_norm(child: str) -> bool:
    """Whether a layer is a norm of queries or keys, by its name."""
    return _NORM.fullmatch(child) is not None


def _mixed(name: str, children: Children, split: Collection[str]) -> Iterator[Problem]:
    inputs = [child for child in children if is_input(child) and _is_linear(children[child])]
    halves, others = ([c for c in inputs if (c in split) is side] for side in (True, False))
    if halves and others:
        what = f"{name} has {', '.join(halves)} split by columns and {', '.join(others)} not"
        fix = "heads stay with their keys and values: give each of them a column style, or none"
        yield Problem("heads-together", what, fix)


def _whole_outputs(
    name: str, children: Children, split: Collection[str], whole: Collection[str]
) -> Iterator[Problem]:
    """An output projection that is whole beside one that is split; where all are, pairing tells it."""
    outputs = [child for child in children if _OUTPUT.fullmatch(child) and _is_linear(children[child])]
    widths = {children[child]["weight"].shape[0] for child in split}
    forgotten = [c for c in outputs if c in whole and children[c]["weight"].shape[1] in widths]
    if forgotten and len(forgotten) < len(outputs):
        what = f"{name} is split by heads, and {', '.join(forgotten)}, which takes them, is whole"
        yield Problem(
            "column-unjoined", what, f"give {list_choices([f'{name}.{c}' for c in forgotten])} rowwise"
        )


def _whole_norms(
    name: str, children: Children, split: Collection[str], whole: Collection[str], head_dim: int | None
) -> Iterator[Problem]:
    """A norm that is as wide as all heads together, and not only as one: there may be a single K/V head."""
    widths = {children[child]["weight"].shape[0] for child in split} - {head_dim}
    norms = [
        child
        for child, owned in children.items()
        if _NORM.fullmatch(child) and child in whole
        if (weight := owned.get("weight")) and weight.shape[0] in widths
    ]
    if norms:
        what = f"{name}: {', '.join(norms)} go over all heads and are whole, and the heads are split"
        yield Problem("norm-whole", what, f"give {list_choices([f'{name}.{n}' for n in norms])} norm_split")


def leaves_parts(style: Style | None) -> bool:
    """Whether what comes out of a layer of this style is a part of the columns."""
    return isinstance(style, PackedColwise) or (isinstance(style, Colwise) and not style.gather)


def _is_linear(owned: Mapping[str, Parameter]) -> bool:
    weight = owned.get("weight")
    return weight is not None and len(weight.shape) == 2


def _join(path: str, child: str) -> str:
    return f"{path}.{child}" if path else child
