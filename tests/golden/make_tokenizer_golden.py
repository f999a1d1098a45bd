"""Makes the tokenizer goldens: two tokenizer.json files and what Hugging Face tokenizers makes of texts.

tokenizer_gpt2.json has GPT-2's rule, tokenizer_llama3.json the rule, ignore_merges, begin-of-text
and added tokens of Llama 3; both are trained on the text that tokenizer_golden.json holds. That file
also holds hard texts and, for each tokenizer, their ids without and with the post-processor.
"""

import json
import os
import pathlib
import random
import subprocess

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers import trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Some of every script that the hard texts use, so that merges cross the bytes of a character.
FOREIGN = """Ça va? L'été dernier, naïve façade, œuvre. Größe, Straße, fünf Äpfel. Señor, ¿qué tal?
Привет, мир! Съешь же ещё этих мягких французских булок. Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم
你好,世界。春眠不覺曉,處處聞啼鳥。こんにちは世界。カタカナとひらがな。안녕하세요 세계. สวัสดีชาวโลก
नमस्ते दुनिया। 🙂🙃😀😃 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 e\u0301 a\u0308 o\u0302\u0301 x² ½ Ⅷ ٣٤٥ १२३ 100,000.00
def f(x):\n    return x + 1\n\tif (a != b) { i++; }  // I'LL we've they're don't it's he'd I'm
"""


def bible(range_of_verses):
    return subprocess.check_output(["bible", "-f", range_of_verses], text=True)


def hard_texts():
    texts = [
        "", " ", "  ", "\n", " \n ", "\r\n\r\n", "\t\tx", "a", " a", "  a", "   a  ", "a\n", "a \n b",
        "Hello world", "Hello, world!  How's it going?", "In the beginning God created the heaven",
        "I'll we've they're don't it's he'd I'm", "I'LL WE'VE THEY'RE DON'T IT'S HE'D I'M",
        "'s 'S 'ſ ''s '’s x's", "1 12 123 1234 12345678901", "3.14159 1e-9 0x1F ½ ² Ⅷ ٣٤٥٦ १२३४",
        "café cafe\u0301 naïve nai\u0308ve", "a\u0300\u0301\u0302\u0303b \u0301 \u0301\u0301",
        "🙂", "🙂🙃 😀", "👨‍👩‍👧‍👦👍🏽🇩🇪🇫🇷", "x🙂y", "a\u200db\u200cc\ufe0f", "\ufeffbom",
        "你好,世界。春眠不覺曉", "こんにちは カタカナ", "안녕하세요 세계", "สวัสดีชาวโลก", "नमस्ते दुनिया",
        "שלום עולם", "مرحبا بالعالم 123", "Привет, мир! ПРИВЕТ", "Größe STRASSE ẞ ǅ ŉ ﬀ",
        "\u00a0a\u00a0b \u2003c\u3000d\u2028e\u2029f\u0085g\u180eh\u200bi\u1680j\u202fk\u205fl",
        "a\u000bb\u000cc\u001cd\u001fe", "\u0000\u0001\u007f", "𝒜𝓑 𐍈 𠀀𠀁 \U00031350\U0002ebf0",
        "\U000e0041\U0010ffff\ufffd\ufffe", "\u1c89\ua7da \U00010d40\U0001ccf0\U00011f50",
        "def f(x):\n    return x + 1\n\n\n\tif (a != b) { i++; }\r\n",
        "!!!???...---===", "(a)[b]{c}<d>", "a_b-c.d/e\\f|g", "#hashtag @user $5 50% ~ ^ & *",
        "x" * 300, "ab" * 200, " " * 100 + "x", "\n" * 50 + "x", "é" * 120, "a" * 31, "a" * 32, "a" * 33,
        "thethethe thethe thethethethethethethethethethethethe",
        "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> x <|endoftext", "<|endoftext|",
        "<|begin_of_text|>Hi<|eot_id|>", "  <mask>  x <mask>y", "\u3000<mask>\u00a0", "<mask><mask> <mask>",
        "<|eot_id|><|eot_id|>x", "<tool><tool_call> <tool_", "see blessedness and blessed <tool>",
    ]
    rng = random.Random(7)
    common = " \n\r\t'sStTlLabcé,.!1290_"
    for _ in range(60):
        kinds = [
            lambda: rng.choice(common),
            lambda: chr(rng.randrange(0x20, 0x7F)),
            lambda: chr(rng.choice([rng.randrange(0xA0, 0x600), rng.randrange(0x900, 0xE80)])),
            lambda: chr(rng.choice([rng.randrange(0x2000, 0x2100), rng.randrange(0x3000, 0x3100)])),
            lambda: chr(rng.choice([rng.randrange(0x4E00, 0x9FFF), rng.randrange(0x1F300, 0x1F700)])),
            lambda: rng.choice(["<|endoftext|>", "<mask>", "\u0301", "\u200d", "the", " God"]),
        ]
        texts.append("".join(rng.choice(kinds)() for _ in range(rng.randrange(1, 40))))
    return texts


def train(pre_tokenizer, text, vocab_size, special, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def gpt2(text):
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False), text, 1000, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3(text):
    rule = pre_tokenizers.Split(Regex(LLAMA3), "isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pre = pre_tokenizers.Sequence([rule, byte_level])
    tokenizer = train(pre, text, 900, [], ignore_merges=True)
    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(marks)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, special=True)])
    tokenizer.add_tokens(["<tool>", "<tool_call>", AddedToken("blessed", normalized=True)])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", begin)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    # A token that no merge makes: ignore_merges finds it all the same.
    state = json.loads(tokenizer.to_str())
    unmade = len(state["model"]["vocab"])
    for token in state["added_tokens"]:
        token["id"] += 1
    for mark in state["post_processor"]["processors"][1]["special_tokens"].values():
        mark["ids"] = [id + 1 for id in mark["ids"]]
    state["model"]["vocab"]["Ġunmade"] = unmade
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


def main():
    text = bible("gen1:1-gen4:26") + FOREIGN
    texts = hard_texts() + ["an unmade unmade bed", bible("rev22:1-rev22:7")]
    golden = {"training_text": text, "texts": texts}
    for name, tokenizer in {"gpt2": gpt2(text), "llama3": llama3(text)}.items():
        tokenizer.save(str(HERE / f"tokenizer_{name}.json"))
        golden[name] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        golden[f"{name}_prompt"] = [tokenizer.encode(t).ids for t in texts]
    # One line a member.
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in golden.items()]
    (HERE / "tokenizer_golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
