"""Texts that tell tokenizers apart, and tokenizers trained on the spot."""
import subprocess

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

# The split rule of Llama 3, as its tokenizer.json spells it.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

INVALID = b"a\xe2\x82 b\xc0\xaf c\xed\xa0\x80 \xf4\x90\x80\x80 \x80 \xf0\x9f\x98 A\xf0\x9f\x98B\xff\n"


def bible():
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout
    return text.decode("utf-8", "replace")


def hard_texts():
    yield "the whole Bible", bible()
    yield "emoji", "👍🏽👩‍👩‍👧‍👦 🇩🇪🏳️‍🌈 ☺️☺ 😀😀😀"
    yield "combining marks", "é e\u0301 o\u0308\u0304 Å A\u030a \u0301 n\u0303o"
    yield "CJK", "日本語のテキスト。中文字符，한국어 텍스트 １２３ 四五六"
    yield "scripts", "Привет, мир! שלום עולם مرحبا بالعالم नमस्ते สวัสดี"
    yield "contractions", "I'll we've they're DON'T CAN'T it's 'S 'tis y'all'd've"
    yield "numbers", "1 12 123 1234 12345678901234567890 3.14159 ²³ ½ Ⅷ ١٢٣ 0x1F"
    yield "white space", "  a   b\t\tc \n\n\n d\r\n\r\n  e\u00a0\u2003f   \n   "
    yield "controls", "\x01\x02 a\x7fb \u200b\u200d\ufeff\u2028x"
    yield "special tokens", "<|endoftext|>a<|endoftext|> <|begin|>b <|endoftext" + "|>" * 3
    yield "100 kB without a space", "abcdefghij" * 10000
    yield "100 kB of one letter", "a" * 100000
    yield "an empty text", ""


def corpus():
    """What tokenizers learn from."""
    return [bible()[:400000], *(text for name, text in hard_texts() if len(text) < 1000)]


def trained_tokenizers():
    specials = ["<|endoftext|>", "<|begin|>"]
    for rule in ("gpt2", "llama3"):
        made = tokenizers.Tokenizer(models.BPE(ignore_merges=rule == "llama3"))
        if rule == "gpt2":
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            made.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        made.decoder = decoders.ByteLevel()
        made.train_from_iterator(corpus(), trainers.BpeTrainer(
            vocab_size=2000, special_tokens=specials, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        yield rule, made
