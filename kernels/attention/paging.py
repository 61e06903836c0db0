"""Reading a request's keys or values back from its pages."""

from torch import Tensor


def gather_pages(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """The first ``length`` tokens listed by ``table`` (int32 ``[max_pages]``) as ``[Hkv, length, D]``.

    ``pages``: ``[pages, Hkv, page tokens, D]``.
    """
    page_tokens = pages.shape[2]
    held = pages[table[: -(-length // page_tokens)].long()]  # [n, Hkv, page tokens, D]
    return held.transpose(0, 1).flatten(1, 2)[:, :length]
