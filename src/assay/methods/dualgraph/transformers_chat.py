"""A causal language model in this process as a chat model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from assay.cache import content_hash
from assay.errors import require
from assay.methods.dualgraph.records import ChatResult, ContextOverflow, Usage


class TransformersChat:
    """A causal language model in this process, through transformers.

    A schema is not enforced: the model sees what the messages say of it. Sampling is repeatable: its seed is
    made from the messages, and the state of torch's generators is left as it was.

    Args:
        source: a folder, a hub id, or `"embedded"` (SmolLM2-135M-Instruct); see `assay.lm.load`.
        device: where the model goes; the first GPU when there is one, else the CPU, when None.
        seed: of the sampling.

    Raises:
        InputError: no model can be loaded from `source`.
    """

    concurrency = 1

    def __init__(self, source: str, *, device: str | None = None, seed: int = 0) -> None:
        require("torch", extra="lm")
        from assay.lm import load

        self.name = f"transformers:{source}"
        self._model, self._tokenizer = load(source, device=device)
        self._seed = seed
        self._lock = threading.Lock()
        self.context_tokens = int(getattr(self._model.config, "max_position_embeddings", 0) or 2048)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.7,
        max_tokens: int = 4096,
        role: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> ChatResult:
        """Answer `messages`; the answer is shortened where prompt and `max_tokens` do not fit together.

        Raises:
            ContextOverflow: the prompt leaves less than a quarter of `max_tokens` for the answer.
        """
        import torch

        plain = [dict(message) for message in messages]
        tokenizer: Any = self._tokenizer
        if tokenizer.chat_template:
            prompt = tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
            encoded = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        else:
            prompt = "\n\n".join(f"{message['role']}: {message['content']}" for message in plain)
            encoded = tokenizer(f"{prompt}\n\nassistant:", return_tensors="pt")
        sent = int(encoded["input_ids"].shape[1])
        room = self.context_tokens - sent
        if room < max(1, max_tokens // 4):
            raise ContextOverflow(
                f"{self.name}: {sent} tokens of messages leave too little of its context of "
                f"{self.context_tokens} for an answer",
                self.context_tokens,
                sent + max_tokens,
            )
        options: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if temperature > 0:
            options = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        seed = int(content_hash([self._seed, plain, temperature]), 16)
        model: Any = self._model
        with self._lock, torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed % 2**63)
            rows = model.generate(
                **encoded.to(model.device),
                max_new_tokens=min(max_tokens, room),
                pad_token_id=tokenizer.pad_token_id
                if tokenizer.pad_token_id is not None
                else tokenizer.eos_token_id,
                **options,
            )
        answer = rows[0, sent:]
        return ChatResult(tokenizer.decode(answer, skip_special_tokens=True), Usage(sent, len(answer)))
