from pathlib import Path

import pytest
from toy.clips import captions, combinations
from toy.words import VOCABULARY, prompt_ids, write_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

EXAMPLES = [wording for labels in combinations("train")[::17] for wording in captions(*labels)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def test_every_word_of_a_caption_is_one_token(tokenizer: PreTrainedTokenizerBase) -> None:
    for caption in EXAMPLES:
        assert len(tokenizer.encode(caption)) == len(caption.split())


def test_a_whole_prompt_stays_short(folder: Path) -> None:
    for with_text, without in prompt_ids(folder, [(caption, 9, 8.0) for caption in EXAMPLES]):
        assert max(len(with_text), len(without)) <= 40


@pytest.mark.parametrize("text", ["", "Ein grüner Würfel, 緑の立方体", "\x00\n\t🙂"])
def test_any_text_has_tokens_and_comes_back(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer.encode(text)
    assert all(0 <= i < VOCABULARY for i in ids)
    assert tokenizer.decode(ids) == text


def test_training_the_tokenizer_again_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
