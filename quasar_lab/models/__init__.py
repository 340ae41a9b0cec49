"""From a model's files to a decoder that scores tokens: checkpoint, tokenizer, KV cache, decoder and its executors."""
