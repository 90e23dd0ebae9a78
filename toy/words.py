"""The toy world's tokenizer and prompts.

A small byte-level BPE, trained on nothing but the texts that the pipeline builds: each of their words
becomes one token, so prompts are short, and any other text falls back to bytes. Prompts are tokenized by
the stock pipeline itself, so training sees exactly what generation will.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from diffusers import Cosmos3OmniModularPipeline as Pipeline
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import _SYSTEM_PROMPT_IMAGE, _SYSTEM_PROMPT_VIDEO
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from toy.clips import FPS, SIZE, SPLITS, captions, combinations, image_caption

VOCABULARY = 512  # 256 bytes, the words, the special tokens; the rest of the embedding's rows stays unused
FRAME_RATES = (FPS, 24)  # the frame rate changes the text and the positions, not what is drawn
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
# the published template's form: role, newline, content
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


def _phrases() -> Iterator[str]:
    """The fixed texts around a prompt and its numbers; one token each, which halves the prompts."""
    yield from (_SYSTEM_PROMPT_IMAGE, _SYSTEM_PROMPT_VIDEO, "system\n", "user\n", "assistant\n")
    for template in (
        Pipeline.duration_template,
        Pipeline.inverse_duration_template,
        Pipeline.video_resolution_template,
        Pipeline.inverse_video_resolution_template,
        Pipeline.image_resolution_template,
        Pipeline.inverse_image_resolution_template,
    ):
        first, *rest = re.split(r"\{.*?\}", template)
        # a sentence opens the text, or follows another
        yield from (first, f". {first}", *(part for part in rest if len(part) > 1))


def _words() -> Iterator[str]:
    """Everything else that a toy prompt is made of: captions and numbers."""
    yield from (str(number) for number in (SIZE, *FRAME_RATES))
    for split in SPLITS:
        for labels in combinations(split):
            yield from (*captions(*labels), image_caption(*labels[:2]))


def write_tokenizer(folder: Path) -> None:
    """Trains the tokenizer and writes it as `AutoTokenizer` reads it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_words(), trainer)
    tokenizer.add_tokens(list(dict.fromkeys(_phrases())))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def prompt_ids(folder: Path, prompts: list[tuple[str, int, float]]) -> list[tuple[list[int], list[int]]]:
    """The pipeline's token ids of each (prompt, frames, frame rate) and of the empty negative prompt."""
    pipeline = Pipeline()
    pipeline.update_components(text_tokenizer=AutoTokenizer.from_pretrained(folder))
    return [
        pipeline.tokenize_prompt(
            text, None, num_frames=frames, height=SIZE, width=SIZE, fps=fps, use_system_prompt=True
        )
        for text, frames, fps in prompts
    ]
