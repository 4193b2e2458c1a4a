"""The forward-backward step, the optimizer, checkpoints, and the loop around them."""

import megatron_rl.distributed  # noqa: F401  prepares Megatron-Core for this machine before its first import
