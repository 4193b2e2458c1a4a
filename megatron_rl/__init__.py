"""Reinforcement-learning post-training of language models on Megatron-Core.

The rooms, from the ground up: `config`, `losses`, `logprobs`, `advantages`, `metrics`; on them `data`,
`models`, `distributed`; on those `training`. `launch/pretrain_rl.py` starts a run.
"""

__version__ = "0.1.0"
