from tokenizers import Tokenizer, models
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

# A batch of fine-tuning: a row of four documents 1, 2, ..., 8, <end>, and a shorter row beside it.
words = {word: i for i, word in enumerate(["<end>", *"12345678", "<pad>"])}
document = [1, 2, 3, 4, 5, 6, 7, 8, 0]
for pad in "<pad>", "<end>":  # a token of its own, or tokenizer.pad_token = tokenizer.eos_token
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)),
                                        eos_token="<end>", pad_token=pad)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    labels = collator([{"input_ids": 4 * document}, {"input_ids": document}])["labels"]
    print((labels[0] == tokenizer.eos_token_id).sum().item(), "end labels")
# prints:
# 4 end labels
# 0 end labels
