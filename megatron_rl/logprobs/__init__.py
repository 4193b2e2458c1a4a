"""Vocab-parallel log-probabilities: no tensor of the whole vocabulary ever exists."""

from megatron_rl.logprobs.from_logits import TokenLogprobs, logprobs_from_logits

__all__ = ["TokenLogprobs", "logprobs_from_logits"]
