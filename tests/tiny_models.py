"""Tiny random models of every family, written as checkpoint folders."""

import json
from pathlib import Path

import torch
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
