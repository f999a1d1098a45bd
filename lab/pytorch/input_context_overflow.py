from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(12)}))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
text = "0 1 2 3 4 5 6 7 8 9 10 11"
requested = len(tokenizer.encode(text).ids)
tokenizer.enable_truncation(max_length=8, direction="left")
used = len(tokenizer.encode(text).ids)
print(requested, "reported requested ", requested - used, "reported dropped")
requested = len(tokenizer.encode(text).ids)  # counted after the cut
print(requested, "reported requested ", requested - used, "reported dropped")
# prints:
# 12 reported requested  4 reported dropped
# 8 reported requested  0 reported dropped
