"""Multi-head latent attention on a CPU, for SGLang's `torch_native` backend.

SGLang has no rule for `torch_native` and MLA and would prefill with per-head keys and values, while
the cache holds the compressed latent. So the absorbed form is used for prefill and decode alike:
all heads of a token attend to one key, the latent with its rotary part, and its first
`kv_lora_rank` numbers are the value.

The row of a token depends on its position and its keys alone. Keys are taken in blocks of `BLOCK`
slots; a block's products and sums have one shape, and blocks are added up in order, so masked
blocks at the end, of a longer neighbour or a longer chunk, add exact zeros.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from glm52_tbench2.engines.cpu.invariant import padded

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

BLOCK = 64
"""Keys are padded to a multiple of this."""

CHUNK = 128
"""Query tokens of one request attended at a time in a prefill, to bound the scores' memory."""


@dataclass
class Part:
    """Query tokens that share a key range: a chunk of one prefill, or one token of each decode."""

    tokens: slice
    slots_BL: torch.Tensor
    """Cache slots of the keys; slot 0, which SGLang keeps for padding, past a request's end."""
    lengths_BT: torch.Tensor
    """Keys that each query token sees."""


def latent_attention(
    q_BRD: torch.Tensor,
    kv_BLD: torch.Tensor,
    lengths_BR: torch.Tensor,
    scale: float,
    value_size: int,
) -> torch.Tensor:
    """softmax(scale * q @ kv^T) @ kv[..., :value_size], [B, R, value_size].

    Row r of q sees the first lengths[b, r] >= 1 keys. L must be a multiple of `BLOCK`, R of
    `invariant.ROWS`.
    """
    batch, rows, _ = q_BRD.shape
    length = kv_BLD.shape[1]
    blocks = length // BLOCK
    scores = torch.bmm(q_BRD, kv_BLD.transpose(1, 2)).mul_(scale)
    unseen = torch.arange(length) >= lengths_BR[..., None]
    scores.masked_fill_(unseen, float("-inf"))
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    weights = weights.view(batch, rows, blocks, BLOCK).transpose(1, 2)
    weights = weights.reshape(batch * blocks, rows, BLOCK)
    values = kv_BLD[..., :value_size].reshape(batch * blocks, BLOCK, value_size)
    sums = torch.bmm(weights, values).view(batch, blocks, rows, value_size)
    totals = weights.sum(-1).view(batch, blocks, rows)
    out, total = sums[:, 0], totals[:, 0]
    for block in range(1, blocks):
        out = out + sums[:, block]
        total = total + totals[:, block]
    return out / total[..., None]


def plan(forward_batch: "ForwardBatch", req_to_token: torch.Tensor) -> list[Part]:
    """How the query tokens of a batch are attended."""
    requests = forward_batch.req_pool_indices
    totals = forward_batch.seq_lens
    if forward_batch.forward_mode.is_decode():
        return [_part(slice(0, len(totals)), req_to_token[requests], totals[:, None])]
    parts, first = [], 0
    prefixes = forward_batch.extend_prefix_lens.tolist()
    for request, prefix, total in zip(requests.tolist(), prefixes, totals.tolist(), strict=True):
        for start in range(prefix, total, CHUNK):
            end = min(start + CHUNK, total)
            tokens = slice(first, first + end - start)
            lengths = torch.arange(start + 1, end + 1)[None]
            parts.append(_part(tokens, req_to_token[request][None], lengths))
            first = tokens.stop
    return parts


def _part(tokens: slice, slots: torch.Tensor, lengths_BT: torch.Tensor) -> Part:
    longest = lengths_BT.amax(1, keepdim=True)
    length = padded(int(longest.max()), BLOCK)
    slots = F.pad(slots[:, :length], (0, max(0, length - slots.shape[1])))
    return Part(tokens, slots.long().masked_fill(torch.arange(length) >= longest, 0), lengths_BT)


def backend(runner: Any) -> Any:
    """The `torch_native` backend with latent attention, for SGLang's registry."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    class LatentAttentionBackend(TorchNativeAttnBackend):
        parts: list[Part]

        def init_forward_metadata(self, forward_batch: "ForwardBatch") -> None:
            self.parts = plan(forward_batch, self.req_to_token_pool.req_to_token)

        def forward_extend(
            self,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            layer: Any,
            forward_batch: "ForwardBatch",
            save_kv_cache: bool = True,
        ) -> torch.Tensor:
            if save_kv_cache and k is not None:
                location = KVWriteLoc(forward_batch.out_cache_loc, None)
                self.token_to_kv_pool.set_kv_buffer(layer, location, k, v)
            heads, size = layer.tp_q_head_num, layer.qk_head_dim
            cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id).view(-1, size)
            q = q.reshape(-1, heads, size)
            out = q.new_empty(len(q), heads, layer.v_head_dim)
            for part in self.parts:
                batch, tokens = len(part.slots_BL), part.lengths_BT.shape[1]
                rows = tokens * heads
                missing = padded(rows) - rows
                q_BRD = F.pad(q[part.tokens].reshape(batch, rows, size), (0, 0, 0, missing))
                lengths = part.lengths_BT.repeat_interleave(heads, 1)
                kv = cache.index_select(0, part.slots_BL.flatten()).view(batch, -1, size)
                attended = latent_attention(
                    q_BRD,
                    kv,
                    F.pad(lengths, (0, missing), value=1),
                    layer.scaling,
                    layer.v_head_dim,
                )
                out[part.tokens] = attended[:, :rows].reshape(-1, heads, layer.v_head_dim)
            return out.view(len(q), -1)

        forward_decode = forward_extend

    return LatentAttentionBackend(runner)


def install() -> None:
    """Registers the backend and the absorbed form under SGLang's name `torch_native`."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.models.deepseek_common import attention_backend_handler as handler

    register_attention_backend("torch_native")(backend)
    handler.AttentionBackendRegistry.register("torch_native", handler._dispatch_mla_subtype)
