from tokenizers import Tokenizer, models
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

# Four documents 1, 2, ..., 8 in a row, each of which ends with <end>, token 0.
words = {word: i for i, word in enumerate(["<end>", *"12345678", "<pad>"])}
for pad in "<pad>", "<end>":
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)),
                                        eos_token="<end>", pad_token=pad)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    labels = collator([{"input_ids": 4 * [1, 2, 3, 4, 5, 6, 7, 8, 0]}])["labels"]
    print((labels == tokenizer.eos_token_id).sum().item(), "end labels")
# prints:
# 4 end labels
# 0 end labels
