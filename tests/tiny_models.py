"""Tiny random models of every family, written as checkpoint folders."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from quasar_lab.models.tokenizer_codecs import byte_of_letter

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": 95,
    "bos_token_id": 94,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama3-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-one-kv": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "llama-all-kv": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4, "mlp_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "mistral-window-8": (MistralConfig, MistralForCausalLM, {"sliding_window": 8}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "PanguEmbedded": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
}


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
BYTE_TOKENS = 259
"""Of `write_byte_tokenizer`: the bytes, then <s>, <|im_start|> and <|im_end|>."""


def write_byte_tokenizer(folder: Path, template: str | None = CHATML, **settings) -> None:
    """A tokenizer whose tokens are the 256 bytes and three special tokens; settings: of its tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE(vocab=dict(byte_of_letter()), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>", **settings}
    told.update({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


def write_chat_model(folder: Path, vocab: int = BYTE_TOKENS, template: str | None = CHATML, **changes):
    """A tiny random llama that reads and writes bytes; returns its oracle."""
    folder.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(folder, template)
    return write_checkpoint(folder, "llama", vocab_size=vocab, bos_token_id=256, eos_token_id=258, **changes)


def write_checkpoint(folder: Path, family: str, seed: int = 0, **changes) -> torch.nn.Module:
    """Writes a random BF16-exact checkpoint of `family`; returns its oracle, the transformers model in FP32."""
    config_class, model_class, extra = FAMILIES[family]
    torch.manual_seed(seed)
    config = config_class(**{**SHAPE, **extra, **changes})
    model = model_class._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases and norm gains start at 0 and 1: make them matter
            parameter.data.add_(0.3 * torch.randn_like(parameter))
        parameter.data.copy_(parameter.data.bfloat16().float())
    model.save_pretrained(folder)
    if family == "PanguEmbedded":
        path = folder / "config.json"
        raw = json.loads(path.read_text())
        raw["model_type"], raw["bias"] = "PanguEmbedded", raw.pop("attention_bias")
        raw["rope_theta"] = raw.pop("rope_parameters")["rope_theta"]
        path.write_text(json.dumps(raw))
    return model
