"""Hugging Face's GPT2LMHeadModel with the same random weights: logits, loss and every gradient (extra: parity)."""

import numpy as np
import oracle
import pytest
from engine import Engine, tiny_config
from tolerance import limit

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

# our name: theirs within a block. Their matrices are (in, out), ours (out, in).
BLOCK = {
    "ln1w": "ln_1.weight", "ln1b": "ln_1.bias", "qkvw": "attn.c_attn.weight", "qkvb": "attn.c_attn.bias",
    "attprojw": "attn.c_proj.weight", "attprojb": "attn.c_proj.bias", "ln2w": "ln_2.weight", "ln2b": "ln_2.bias",
    "fcw": "mlp.c_fc.weight", "fcb": "mlp.c_fc.bias", "fcprojw": "mlp.c_proj.weight", "fcprojb": "mlp.c_proj.bias",
}  # fmt: skip
TOP = {"wte": "wte.weight", "wpe": "wpe.weight", "lnfw": "ln_f.weight", "lnfb": "ln_f.bias"}
TRANSPOSED = ("qkvw", "attprojw", "fcw", "fcprojw")

SHAPES = {
    "plain": ({}, 2, 16),
    "V=Vp": ({"vocab": 128}, 2, 16),
    "C=48, three heads, short": ({"channels": 48, "heads": 3, "layers": 3}, 3, 7),
    "like a small d12": ({"channels": 192, "heads": 3, "layers": 4, "vocab": 1000, "context": 64}, 2, 64),
}


def their_model(config):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab, n_positions=config.context, n_embd=config.channels, n_layer=config.layers,
            n_head=config.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    with torch.no_grad():  # biases not 0, gains not 1: nothing may hide
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def by_our_names(model, config, of):
    """Their tensors, each passed through of(parameter), as ours: stacked, transposed, padded."""
    theirs = {name: of(p).numpy() for name, p in model.transformer.named_parameters()}
    ours = {}
    for name, shape in config.shapes().items():
        if name in TOP:
            ours[name] = theirs.pop(TOP[name])
        else:
            layers = [theirs.pop(f"h.{i}.{BLOCK[name]}") for i in range(config.layers)]
            ours[name] = np.stack([layer.T if name in TRANSPOSED else layer for layer in layers])
        if name == "wte":
            ours[name] = np.pad(ours[name], ((0, shape[0] - config.vocab), (0, 0)))
        assert ours[name].shape == shape, name
    assert not theirs
    return ours


@pytest.mark.parametrize("shape", SHAPES)
def test_same_logits_loss_and_gradients(shape, backend):
    changes, B, T = SHAPES[shape]
    config = tiny_config(**changes)
    inputs, targets = oracle.random_batch(config, B, T)
    model = their_model(config)
    logits = model(torch.tensor(inputs).long()).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).long().flatten())
    loss.backward()
    weights = by_our_names(model, config, lambda p: p.detach())
    expected = by_our_names(model, config, lambda p: p.grad)
    with Engine(config, B, T, backend, weights) as engine:
        assert oracle.distance(engine.logits(inputs), logits.detach().numpy()) <= limit("logits", backend)
        found, grads = engine.loss_and_grads(inputs, targets)
    assert found == pytest.approx(loss.item(), rel=limit("loss", backend))
    distances = {name: oracle.distance(grads[name], expected[name]) for name in expected}
    assert max(distances.values()) <= limit("grads", backend), distances


def test_same_training(backend):
    """Five clipped AdamW steps of torch.optim, decay on matrices only: the same losses and norms."""
    config = tiny_config()
    model = their_model(config)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    with Engine(config, 2, 16, backend, by_our_names(model, config, lambda p: p.detach())) as engine:
        for step in range(5):
            inputs, targets = oracle.random_batch(config, 2, 16, seed=step)
            logits = model(torch.tensor(inputs).long()).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).long().flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            result = engine.step(
                [(inputs, targets)], step=step + 1, learning_rate=1e-3, weight_decay=0.1, grad_clip=0.5
            )
            assert norm > 0.5
            assert result.loss == pytest.approx(loss.item(), rel=limit("overfit", backend)), step
            assert result.grad_norm == pytest.approx(norm.item(), rel=limit("overfit", backend)), step
