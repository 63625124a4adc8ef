# SPDX-License-Identifier: Apache-2.0
"""The operators of SGLang's compiled CPU kernels that Qwen4Exp calls, in plain torch.

No CPU build of sgl_kernel is published. Names and arguments are SGLang's: model_executor/cpu_graph_runner.py has them.
T is tokens, H heads. They are slow, for tests with small models. Tokens equal to those of transformers' eager model
show that they compute the right thing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _rms(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _gemma_norm(x: Tensor, weight: Tensor, eps: float, dim: int) -> Tensor:
    x = x.reshape(-1, dim)
    return (_rms(x, eps) * (1 + weight.float())).to(x.dtype)


def fused_qk_gemma_rmsnorm_cpu(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, dim: int) -> Any:
    return _gemma_norm(q, q_weight, eps, dim), _gemma_norm(k, k_weight, eps, dim)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, dim: int, heads: int
) -> Any:
    """q_gate [T, heads * 2 * dim]: each head's query, then its gate."""
    q, gate = q_gate.reshape(-1, heads, 2, dim).unbind(2)
    return (*fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, dim), gate.reshape(-1, dim).contiguous())


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    x *= gate.reshape(x.shape).sigmoid()


def fused_rmsnorm_gated_cpu(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    return (_rms(x, eps) * weight.float() * functional.silu(gate.float())).to(x.dtype)


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, k_heads: int, v_heads: int, k_dim: int, v_dim: int
) -> Any:
    """Projections side by side: [q k v] stays one tensor; gate z, then the delta rule's b and a."""
    at = 2 * k_heads * k_dim + v_heads * v_dim
    z = qkvz[:, at:].reshape(-1, v_heads, v_dim)
    return qkvz[:, :at].contiguous(), z.contiguous(), *(half.contiguous() for half in ba.chunk(2, dim=-1))


def fused_gdn_gating_cpu(decay_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> Any:
    """Log decay and update rate of each token and head, [1, T, H] each, float32."""
    log_decay = -decay_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return log_decay[None], b.float().sigmoid()[None]


def _gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, states: Tensor, slots: Tensor, starts: Tensor
) -> Tensor:
    """The recurrence token by token in float32; states[slot] [v_heads, k_dim, v_dim] go on from where they stood."""
    shape, dtype, heads = v.shape, v.dtype, v.shape[-2]
    q, k, v = (x.reshape(-1, *x.shape[-2:]).float() for x in (q, k, v))
    log_decay, rate = (x.reshape(-1, heads, 1) for x in (log_decay, rate))
    q, k = (functional.normalize(x, dim=-1, eps=1e-6).repeat_interleave(heads // x.shape[1], 1) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    out = torch.zeros_like(v)
    bounds = starts.tolist()
    for slot, first, end in zip(slots.tolist(), bounds, bounds[1:], strict=False):
        if slot < 0:
            continue
        state = states[slot].float()
        for t in range(first, end):
            state = state * log_decay[t, :, :, None].exp()
            read = (state * k[t, :, :, None]).sum(1)
            state = state + k[t, :, :, None] * (rate[t] * (v[t] - read))[:, None]
            out[t] = (state * q[t, :, :, None]).sum(1)
        states[slot] = state.to(states.dtype)
    return out.reshape(shape).to(dtype)


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, initial_state_source: Tensor,
    initial_state_indices: Tensor, cu_seqlens: Tensor, **_: Any,
) -> Tensor:  # fmt: skip
    heads = A_log.numel()
    log_decay, rate = fused_gdn_gating_cpu(A_log, a.reshape(-1, heads), b.reshape(-1, heads), dt_bias)
    return _gated_delta_rule(q, k, v, log_decay, rate, initial_state_source, initial_state_indices, cu_seqlens)


def chunk_gated_delta_rule_cpu(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor, cu_seqlens: Tensor,
    initial_state_indices: Tensor, **_: Any,
) -> Any:  # fmt: skip
    """Writes the new states in place, so there is no final state to return."""
    return _gated_delta_rule(q, k, v, g, beta, initial_state, initial_state_indices, cu_seqlens), None, None


def _convolve(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Any:
    """x [dim, t] behind the last k - 1 inputs, state [dim, k - 1]; returns the output and the new state."""
    window = torch.cat([state.to(x.dtype), x], dim=1)
    out = functional.conv1d(
        window.float(), weight.float()[:, None], None if bias is None else bias.float(), groups=len(weight)
    )
    if activation in ("silu", "swish"):
        out = functional.silu(out)
    return out.to(x.dtype), window[:, window.shape[1] - state.shape[1] :].to(state.dtype)


def causal_conv1d_fn_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, conv_states: Tensor,
    has_initial_state: Tensor, cache_indices: Tensor, query_start_loc: Tensor, seq_lens_cpu: Any,
) -> Tensor:  # fmt: skip
    out = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    for at, slot in enumerate(cache_indices.tolist()):
        part = slice(bounds[at], bounds[at + 1])
        if slot < 0 or part.start == part.stop:
            continue
        state = conv_states[slot] if has_initial_state[at] else torch.zeros_like(conv_states[slot])
        out[:, part], conv_states[slot] = _convolve(x[:, part], state, weight, bias, activation)
    return out


def causal_conv1d_update_cpu(
    x: Tensor, conv_states: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    conv_state_indices: Tensor,
) -> Tensor:  # fmt: skip
    """x [batch, dim]: one token of each sequence; a padded one has slot -1."""
    out = torch.zeros_like(x)
    for at, slot in enumerate(conv_state_indices.tolist()):
        if slot >= 0:
            token, conv_states[slot] = _convolve(x[at, :, None], conv_states[slot], weight, bias, activation)
            out[at] = token[:, 0]
    return out


OPERATORS = (
    fused_qk_gemma_rmsnorm_cpu, fused_qk_gemma_rmsnorm_with_gate_cpu, fused_sigmoid_mul_cpu, fused_rmsnorm_gated_cpu,
    fused_qkvzba_split_reshape_cat_contiguous_cpu, fused_gdn_gating_cpu, fused_sigmoid_gating_delta_rule_update_cpu,
)  # fmt: skip
MAMBA = (causal_conv1d_fn_cpu, causal_conv1d_update_cpu, chunk_gated_delta_rule_cpu)


def bind() -> None:
    """torch.ops.sgl_kernel.NAME, where SGLang looks for them at import."""
    for operator in OPERATORS:
        setattr(torch.ops.sgl_kernel, operator.__name__, operator)
