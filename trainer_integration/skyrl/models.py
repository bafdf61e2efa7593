"""Policy and critic for CPU workers, called like SkyRL's ``HFModelWrapper`` (which cannot be imported without CUDA)."""

from typing import Any

import torch
from skyrl.backends.skyrl_train.utils.torch_utils import chunked_entropy_from_logits, logprobs_from_logits
from torch import Tensor, nn
from transformers import AutoModelForCausalLM


def load_causal_lm(path: str) -> Any:
    """The checkpoint in float32 with eager attention, so that sampler and trainer compute the same numbers."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def positions(attention_mask: Tensor) -> Tensor:
    """Position ids of left-padded rows: the first real token is at 0."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


class CausalLM(nn.Module):
    """Log-probabilities of the last ``num_actions`` tokens of each row, float[batch, num_actions]."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.model = load_causal_lm(path)
        self.model.config.use_cache = False

    def forward(
        self,
        sequences: Tensor,
        num_actions: int,
        attention_mask: Tensor,
        temperature: float = 1.0,
        return_output: bool = False,
        compute_entropy: bool = False,
        entropy_requires_grad: bool = True,
        **unused: Any,
    ) -> Any:
        kept = num_actions + 1  # what follows the prompt: logits of long prompts would fill the memory for nothing
        output = self.model(
            sequences, attention_mask=attention_mask, position_ids=positions(attention_mask), logits_to_keep=kept
        )
        logits = output["logits"] / temperature
        log_probs = logprobs_from_logits(logits, torch.roll(sequences, shifts=-1, dims=1)[:, -kept:])
        if compute_entropy:
            output["entropy"] = chunked_entropy_from_logits(
                logits, requires_grad=entropy_requires_grad, attention_mask=attention_mask[:, -kept:]
            )
        log_probs = log_probs[:, -num_actions - 1 : -1]
        return (log_probs, output) if return_output else log_probs


class Critic(nn.Module):
    """Value before each of the last ``num_actions`` tokens of each row, float[batch, num_actions]; starts at 0."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.model = load_causal_lm(path).model
        self.head = nn.Linear(self.model.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(
        self, sequences: Tensor, num_actions: int, attention_mask: Tensor, return_output: bool = False, **unused: Any
    ) -> Any:
        output = self.model(sequences, attention_mask=attention_mask, position_ids=positions(attention_mask))
        values = self.head(output.last_hidden_state).squeeze(-1)[:, -num_actions - 1 : -1]
        return (values, output) if return_output else values
