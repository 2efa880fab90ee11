"""A Granite of two layers with random weights continues a prompt on the device."""

import torch
from transformers import GraniteConfig, GraniteForCausalLM

torch.manual_seed(0)
config = GraniteConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.1,
    eos_token_id=None,
    pad_token_id=0,
)
model = GraniteForCausalLM(config).eval().to("spyre", torch.float16)
prompt = torch.randint(1, 128, (1, 16)).to("spyre")

result = model.generate(
    prompt,
    attention_mask=torch.ones_like(prompt),
    max_new_tokens=8,
    do_sample=False,
    return_dict_in_generate=True,
)
keys = result.past_key_values.layers[0].keys
print(f"new tokens: {result.sequences[0, 16:].tolist()}")
print(f"cached keys of one layer: {tuple(keys.shape)} {keys.dtype} on {keys.device}")
print(f"device memory in use: {torch.spyre.memory_allocated()} bytes")
