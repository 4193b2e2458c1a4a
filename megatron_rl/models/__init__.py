"""GPT models on Megatron-Core: layers, attention, initial weights."""

import megatron_rl.distributed  # noqa: F401  prepares Megatron-Core for this machine before its first import
