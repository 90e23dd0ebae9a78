"""Prompt reuse: the understanding pathway once per prompt, only the generation pathway at every step.

Nothing in the understanding pathway depends on the timestep or the noisy tokens, and generation needs of
it only the keys and values of every layer. What its last layer computes beyond them is read by nobody and
is skipped.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from armillary.errors import PlanError, Problem
from armillary.models.cosmos3.attention import (
    PromptKeys,
    Rope,
    generation_projections,
    prompt_keys,
    stock_attention,
    understand,
)
from armillary.models.cosmos3.pathways import EMBEDDING, blocks_of
from armillary.models.cosmos3.streams import Pathways
from armillary.parallel.context import Context, Rows
from armillary.parallel.flash import refuse_backend
from armillary.parallel.tensor import slot_of

Prompt: TypeAlias = tuple[PromptKeys, ...]
"""One entry per layer."""

STORE_BYTES = 2 << 30
"""Enough for several prompts of Cosmos3-Super: 64 layers x 2 x 8 heads x 128 x 2 bytes is 0.25 MB a token."""


class PromptStore:
    """The prompts used last, bounded in bytes; the one used longest ago goes first."""

    def __init__(self, max_bytes: int = STORE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._prompts: OrderedDict[Hashable, Prompt] = OrderedDict()

    def get(self, key: Hashable) -> Prompt | None:
        """The stored prompt, which is then the one used last."""
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def put(self, key: Hashable, prompt: Prompt) -> None:
        """Store a prompt. The two used last stay, however large: they are the branches of one generation."""
        self._prompts[key] = prompt
        while len(self._prompts) > 2 and self.nbytes > self.max_bytes:
            self._prompts.popitem(last=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all stored keys and values on this rank."""
        return sum(keys.nbytes for prompt in self._prompts.values() for keys in prompt)

    def clear(self) -> None:
        """Forget every prompt: the weights have changed."""
        self._prompts.clear()

    def __len__(self) -> int:
        return len(self._prompts)


class Prefill:
    """Takes the place of a transformer's `_run_decoder_stack`, on that instance.

    The stock `forward` embeds, calls it and reads the generation rows of what it returns, so the
    understanding rows need not be computed again.
    """

    def __init__(self, model: Any, context: Context, store: PromptStore, pathways: Pathways) -> None:
        self.model = model
        self.context = context
        self.store = store
        self.pathways = pathways
        self._key: Hashable = None
        names = [name for name, _ in model.named_parameters()]
        blocks = blocks_of(names, "understanding").values()
        self._read = [slot_of(model, name) for name in (EMBEDDING, *chain.from_iterable(blocks))]
        self._weights: Hashable = None
        self._hooks: list[RemovableHandle] = []

    def install(self) -> None:
        """Put this in place on the model; the class stays as it is."""
        self._hooks = [
            self.model.register_forward_pre_hook(self._note_weights),
            self.model.register_forward_pre_hook(self._note_prompt, with_kwargs=True),
        ]
        # a stored prompt has no gradients, so a backward pass fails cleanly instead of being wrong
        self.model.requires_grad_(False)
        self.model._run_decoder_stack = self.run

    def remove(self) -> None:
        """Take it out again; the model computes every prompt at every step, with the weights it has."""
        for hook in self._hooks:
            hook.remove()
        del self.model._run_decoder_stack
        self.pathways.close()

    def _note_weights(self, *_: Any) -> None:
        """Forget every prompt when a weight that it was computed with was written to or replaced. Those that
        live elsewhere have one and the same tensor in their place before every call."""
        weights = tuple(_state(slots[leaf]) for slots, leaf in self._read)
        if weights != self._weights:
            self.store.clear()
        self._weights = weights

    def _note_prompt(self, _: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What tells one prompt from another: its tokens, their order and positions, and the dtype."""
        _refuse_other_processors(self.model, self.context.ring.size)
        given = inspect.signature(type(self.model).forward).bind(self.model, *args, **kwargs).arguments
        positions = given["position_ids"][..., : given["und_len"]]
        self._key = (
            *map(_bits, (given["input_ids"], given["text_indexes"], positions)),
            self.model.embed_tokens.weight.dtype,
        )

    def run(
        self, und_seq: torch.Tensor, gen_seq: torch.Tensor, rotary_emb: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[prompt, hidden] and [tokens, hidden] in; the same shapes out, the prompt's rows as they came."""
        und_cosine, und_sine, gen_cosine, gen_sine = rotary_emb
        prompt = self.store.get(self._key)
        if prompt is None:
            prompt = self.understand(und_seq, (und_cosine, und_sine))
            self.store.put(self._key, prompt)
        return und_seq, self.generate(gen_seq, (gen_cosine, gen_sine), prompt)

    def understand(self, und_seq: torch.Tensor, rope: Rope) -> Prompt:
        """The one pass over the prompt."""
        kept = []
        last = len(self.model.layers) - 1
        for number, layer in enumerate(self.model.layers):
            with self.pathways.understanding.block(number):
                if number == last:  # of which only keys and values are ever read
                    keys, _ = prompt_keys(layer.self_attn, layer.input_layernorm(und_seq), rope)
                else:
                    keys, und_seq = _understanding_layer(layer, und_seq, rope)
            kept.append(keys)
        self.pathways.understanding.release()
        return tuple(kept)

    def generate(self, gen_seq: torch.Tensor, rope: Rope, prompt: Prompt) -> torch.Tensor:
        """The generation pathway over its own rows, gathered again at the end."""
        rows = self.context.rows(gen_seq.shape[0])
        local = self.context.local(gen_seq, rows)
        local_rope = (self.context.local(rope[0], rows), self.context.local(rope[1], rows))
        for number, (layer, keys) in enumerate(zip(self.model.layers, prompt, strict=True)):
            with self.pathways.generation.block(number):
                local = _generation_layer(layer, local, local_rope, keys, self.context, rows)
        return self.context.whole(self.model.norm_moe_gen(local), rows)


def _refuse_other_processors(model: Any, ring: int) -> None:
    """The two pathways are computed here and not by the attention's processor, so another one would be
    passed over; and `ring` passes over the backend that one asks for."""
    for layer in model.layers:
        attn = layer.self_attn
        if ring > 1:
            refuse_backend(attn.processor, ring)
        if type(attn.processor) is not type(attn)._default_processor_cls:
            raise PlanError(
                Problem(
                    "stock-processor",
                    f"{type(attn.processor).__name__} is not the stock attention processor, and prefill and "
                    "the context axes compute the attention themselves",
                    "load with prefill=False and tp or cfg only, or set the stock processor",
                )
            )


def _understanding_layer(layer: Any, und_seq: torch.Tensor, rope: Rope) -> tuple[PromptKeys, torch.Tensor]:
    keys, attention = understand(layer.self_attn, layer.input_layernorm(und_seq), rope)
    residual = und_seq + attention
    return keys, residual + layer.mlp(layer.post_attention_layernorm(residual))


def _generation_layer(
    layer: Any, gen_seq: torch.Tensor, rope: Rope, keys: PromptKeys, context: Context, rows: Rows
) -> torch.Tensor:
    attn = layer.self_attn
    query, key, value = generation_projections(attn, layer.input_layernorm_moe_gen(gen_seq), rope)
    out = context.attention(query, key, value, keys, rows, stock_attention(attn))
    residual: torch.Tensor = gen_seq + attn.to_add_out(out.flatten(-2, -1))
    mlp: torch.Tensor = layer.mlp_moe_gen(layer.post_attention_layernorm_moe_gen(residual))
    return residual + mlp


def _state(weight: torch.Tensor) -> tuple[int, int]:
    """Where the values lie, and how often they were written to, which torch counts outside inference mode."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
