"""What calls cost: list prices of hosted models, as of a date, in US dollars."""

from __future__ import annotations

from assay.methods.dualgraph.records import Usage

PRICES_DATE = "2026-06-21"

# US dollars a million tokens: (input, output). Without the discounts for cached input and for batches, so
# what is shown is not below the bill. As quoted by others from the provider's price list up to that date; of
# models that the list no longer holds, the last quoted price.
PRICES: dict[str, tuple[float, float]] = {
    "gpt-5.5": (5.00, 30.00),
    "gpt-5.4": (2.50, 15.00),
    "gpt-5.4-mini": (0.75, 4.50),
    "gpt-5.4-nano": (0.20, 1.25),
    "gpt-5.1": (1.25, 10.00),
    "gpt-5": (1.25, 10.00),
    "gpt-5-mini": (0.25, 2.00),
    "gpt-5-nano": (0.05, 0.40),
    "gpt-4.1": (2.00, 8.00),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-4.1-nano": (0.10, 0.40),
    "gpt-4o": (2.50, 10.00),
    "gpt-4o-mini": (0.15, 0.60),
    "o3": (2.00, 8.00),
    "o3-mini": (1.10, 4.40),
    "o4-mini": (1.10, 4.40),
}
# Models that run in this process, or on a machine of the user's, cost no money.
_FREE = ("extractive", "transformers:", "llama_cpp:", "replay:")


def price(model: str, usage: Usage) -> float | None:
    """The list price of a call in US dollars; None for a model that the table does not list.

    Args:
        model: the name of a `ChatModel`, with or without the part before the first colon and after the `@`.
        usage: the tokens.
    """
    if model.startswith(_FREE):
        return 0.0
    name = model.removeprefix("openai:").partition("@")[0].rpartition("/")[2]
    # A dated version costs what its model costs: gpt-4.1-2025-04-14.
    parts = name.split("-")
    if len(parts) > 3 and all(part.isdigit() for part in parts[-3:]):
        name = "-".join(parts[:-3])
    if name not in PRICES:
        return None
    sent, received = PRICES[name]
    return (usage.prompt_tokens * sent + usage.completion_tokens * received) / 1e6
