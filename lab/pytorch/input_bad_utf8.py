from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# A token for each byte, as GPT-2 has them.
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
ids = tokenizer.encode("\U0001F600").ids
for text in tokenizer.decode(ids), "".join(tokenizer.decode([i]) for i in ids):
    print(text.count("\ufffd"), "U+FFFD written ", len(text.encode()), "bytes of the emoji")

for encoding in "utf-8", "iso-8859-1":
    print(len("\u00e9".encode().decode(encoding).encode()), "bytes of e acute")
# prints:
# 0 U+FFFD written  4 bytes of the emoji
# 4 U+FFFD written  12 bytes of the emoji
# 2 bytes of e acute
# 4 bytes of e acute
