"""Log-probabilities and entropy of an unsharded vocabulary."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.logprobs import logprobs_from_logits

INF = math.inf


def run(logits, target, **options):
    return logprobs_from_logits(torch.tensor([logits]), torch.tensor([target]), tp_group=None, **options)


@pytest.mark.parametrize(
    ("logits", "target", "options", "logprob", "entropy"),
    [
        ([-200.0] * 4, 0, {}, -1.3863, 1.3863),
        ([0.0, 1.0, 2.0, -INF], 2, {}, -0.4076, 0.8324),
        ([0.0, 1.0, -INF, -INF], 0, {}, -1.3133, 0.5822),
        ([1.0, 1.0, 1.0, 0.0], 0, {"vocab_size": 3}, -1.0986, 1.0986),
        ([2.0, 0.0], 0, {"temperature": 0.5}, -0.01815, 0.0901),
        ([0.0, 1.0, 2.0, 3.0], -100, {}, 0.0, 0.0),
        ([0.0, -INF], 1, {}, -INF, 0.0),
    ],
)
def test_known_values(logits, target, options, logprob, entropy):
    found = run(logits, target, with_entropy=True, **options)
    assert found.logprobs.item() == pytest.approx(logprob, abs=5e-5)
    assert found.entropy.item() == pytest.approx(entropy, abs=5e-5)


def reference(logits, targets, vocab_size, temperature):
    """What the function must give, by torch in fp64."""
    logp = torch.log_softmax(logits.double()[:, :vocab_size] / temperature, dim=-1)
    ignored = targets == -100
    picked = logp.gather(1, targets.clamp(min=0)[:, None])[:, 0].masked_fill(ignored, 0)
    return picked, torch.special.entr(logp.exp()).sum(-1).masked_fill(ignored, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("vocab", "vocab_size"), [(50, 50), (128, 100), (70_000, 69_000)])
def test_values_and_gradients_against_fp64(dtype, vocab, vocab_size):
    g = torch.Generator().manual_seed(1)
    rows = 40 if vocab < 1000 else 37  # the large vocabulary takes more than one block of rows
    logits = (torch.randn(rows, vocab, generator=g) * 4).to(dtype).requires_grad_()
    targets = torch.randint(0, vocab_size, (rows,), generator=g)
    targets[3] = -100
    weights = torch.randn(2, rows, generator=g, dtype=torch.float64)

    found = logprobs_from_logits(
        logits, targets, tp_group=None, vocab_size=vocab_size, temperature=0.7, with_entropy=True
    )
    (found.logprobs * weights[0] + found.entropy * weights[1]).sum().backward()
    twin = logits.detach().double().requires_grad_()
    logprobs, entropy = reference(twin, targets, vocab_size, 0.7)
    (logprobs * weights[0] + entropy * weights[1]).sum().backward()

    # fp32 accumulates 70,000 terms; bf16 rounds the gradient only, to 8 bits
    torch.testing.assert_close(found.logprobs.double(), logprobs, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=2e-6, atol=5e-6)
    rtol = {torch.float32: 1e-4, torch.bfloat16: 2**-8, torch.float64: 1e-9}[dtype]
    torch.testing.assert_close(logits.grad.double(), twin.grad, rtol=rtol, atol=1e-6)
    assert (logits.grad[:, vocab_size:] == 0).all()
    assert (logits.grad[3] == 0).all()


def test_gradcheck_in_fp64():
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 5, -100, 3, 2])

    def both(x):
        return logprobs_from_logits(x, targets, tp_group=None, vocab_size=6, temperature=1.3, with_entropy=True)

    torch.autograd.gradcheck(lambda x: tuple(both(x)), (logits,))


@pytest.mark.parametrize("consume", [False, True])
def test_logits_change_only_when_handed_over(consume):
    leaf = torch.randn(6, 9, requires_grad=True)
    logits = leaf * 1.0
    before = logits.detach().clone()
    found = logprobs_from_logits(logits, torch.arange(6), tp_group=None, consume_logits=consume)
    assert torch.equal(logits, before)
    found.logprobs.sum().backward()
    assert torch.equal(logits, before) is not consume
    expected = torch.nn.functional.one_hot(torch.arange(6), 9) - before.softmax(-1)
    torch.testing.assert_close(leaf.grad, expected)


def test_gradient_with_stride_is_as_contiguous():
    logits = torch.randn(4, 5, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3])
    upstream = torch.arange(8.0).view(4, 2)[:, 0]
    assert not upstream.is_contiguous()
    grads = []
    for g in (upstream, upstream.contiguous()):
        found = logprobs_from_logits(logits, targets, tp_group=None).logprobs
        grads.append(torch.autograd.grad(found, logits, g)[0])
    assert torch.equal(*grads)


def test_a_sharp_row_of_a_large_vocabulary():
    logits = torch.zeros(1, 129_920)
    logits[0, 77] = 300.0
    found = logprobs_from_logits(logits, torch.tensor([77]), tp_group=None)
    assert found.logprobs.item() == 0.0


def test_entropy_of_bf16_logits_is_that_of_fp64():
    logits = (torch.randn(8, 32_000, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    found = logprobs_from_logits(logits, torch.zeros(8, dtype=torch.int64), tp_group=None, with_entropy=True)
    _, entropy = reference(logits, torch.zeros(8, dtype=torch.int64), 32_000, 1.0)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=0, atol=1e-4)


def test_no_tokens():
    logits = torch.empty(0, 5, requires_grad=True)
    found = logprobs_from_logits(logits, torch.empty(0, dtype=torch.int64), tp_group=None, with_entropy=True)
    (found.logprobs.sum() + found.entropy.sum()).backward()
    assert found.logprobs.shape == (0,)
    assert logits.grad.shape == (0, 5)


@pytest.mark.parametrize("target", [4, -1, -99, 3])
def test_a_target_outside_the_vocabulary_is_an_error(target):
    with pytest.raises(ValueError, match=f"target {target} is outside"):
        run([0.0, 1.0, 2.0, 3.0], target, vocab_size=3)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": math.nan}, {"vocab_size": 9}])
def test_wrong_arguments(options):
    with pytest.raises(ValueError, match="temperature|vocab_size"):
        run([0.0, 1.0], 0, **options)


def test_truncated_distributions_are_refused():
    """Log-probabilities of top-p or top-k samples are not those of the softmax: there is no option to ask for them."""
    with pytest.raises(TypeError, match="top_p"):
        run([0.0, 1.0], 0, top_p=0.8)
